// tokenizer.json (Hugging Face tokenizers' own format) -> bpe_tokenizer.
#include <algorithm>

#include "tokenizer/bpe_tokenizer.hpp"
#include "tokenizer/json_fields.hpp"
#include "tokenizer/special_tokens.hpp"

namespace troupe {
namespace {

void read_vocabulary(json_fields& fields, bpe_tokenizer_parts& parts) {
  const value& vocabulary = fields.need("vocab");
  if (!vocabulary.is_object()) fields.fail("\"vocab\" must be an object");
  if (vocabulary.as_object().empty()) fields.fail("\"vocab\" is empty");
  parts.table.listed = vocabulary.as_object().size();
  for (const auto& [text, id] : vocabulary.as_object().entries()) {
    if (!id.is_int()) fields.fail("a token's id is no integer");
    const std::int64_t number = id.as_int();
    if (number >= 0 && number < static_cast<std::int64_t>(parts.table.texts.size()) &&
        parts.table.texts[static_cast<std::size_t>(number)]) {
      fields.fail("two tokens have the id " + std::to_string(number));
    }
    parts.table.set_text(number, text, fields.where());
  }
  parts.in_model.resize(parts.table.texts.size());
  for (std::size_t id = 0; id < parts.in_model.size(); ++id) parts.in_model[id] = parts.table.texts[id].has_value();
}

// "a b" (one ASCII space) or ["a", "b"].
std::pair<std::string_view, std::string_view> split_merge(const value& item, std::size_t rank, const json_fields& fields) {
  const auto fail = [&](const char* reason) { fields.fail("merge " + std::to_string(rank) + ": " + reason); };
  if (item.is_string()) {
    const std::string_view text = item.as_string();
    const std::size_t space = text.find(' ');
    if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) fail("needs exactly one space");
    return {text.substr(0, space), text.substr(space + 1)};
  }
  if (!item.is_array() || item.as_array().size() != 2 || !item.as_array()[0].is_string() || !item.as_array()[1].is_string()) {
    fail("must be \"a b\" or [\"a\", \"b\"]");
  }
  return {item.as_array()[0].as_string(), item.as_array()[1].as_string()};
}

void read_merges(json_fields& fields, bpe_tokenizer_parts& parts) {
  text_index by_text(parts.table.texts.size());
  for (std::size_t id = 0; id < parts.table.texts.size(); ++id) {
    if (parts.table.texts[id]) by_text.insert(*parts.table.texts[id], static_cast<token_id>(id));
  }
  const value_array& merges = fields.array("merges");
  std::string merged;
  std::size_t line = 0;
  for (const value& item : merges) {
    const std::size_t rank = line++;
    if (item.is_string() && item.as_string().starts_with("#version")) continue;
    const auto [left, right] = split_merge(item, rank, fields);
    merged.assign(left).append(right);
    const auto left_id = by_text.find(left);
    const auto right_id = by_text.find(right);
    const auto merged_id = by_text.find(merged);
    if (!left_id || !right_id || !merged_id)
      fields.fail("merge " + std::to_string(rank) + ": a part or the whole is not in the vocabulary");
    parts.merges.push_back({*left_id, *right_id, *merged_id});
  }
  if (parts.merges.empty()) fields.fail("\"merges\" is empty");
}

void read_model(const value& item, bpe_tokenizer_parts& parts, const std::string& where) {
  json_fields fields(item, where);
  const std::string type = fields.maybe_text("type").value_or("BPE"); // older files do not say
  if (type != "BPE") fields.fail("unsupported model \"" + type.substr(0, 64) + "\": only BPE is supported");
  const value* dropout = fields.get("dropout");
  if (dropout != nullptr && !(dropout->is_number() && dropout->as_double() == 0.0)) fields.fail("\"dropout\" is not supported");
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!fields.maybe_text(affix).value_or("").empty()) fields.fail(std::string("\"") + affix + "\" is not supported");
  }
  parts.model.fuse_unk = fields.flag("fuse_unk", false);
  parts.model.byte_fallback = fields.flag("byte_fallback", false);
  parts.model.ignore_merges = fields.flag("ignore_merges", false);
  read_vocabulary(fields, parts);
  read_merges(fields, parts);
  if (const auto unknown = fields.maybe_text("unk_token")) {
    const auto& texts = parts.table.texts;
    const auto found = std::find(texts.begin(), texts.end(), unknown);
    if (found == texts.end()) fields.fail("\"unk_token\" is not in the vocabulary");
    parts.model.unk = static_cast<token_id>(found - texts.begin());
  }
  fields.done();
}

// What a post-processor puts before and behind a single text.
void read_template(json_fields& fields, token_table_parts& table) {
  const value& specials = fields.need("special_tokens");
  if (!specials.is_object()) fields.fail("\"special_tokens\" must be an object");
  std::vector<token_id> before, behind;
  bool seen_text = false;
  for (const value& item : fields.array("single")) {
    json_fields entry(item, fields.where());
    const value* sequence = entry.get("Sequence");
    const value* special = entry.get("SpecialToken");
    entry.done();
    if ((sequence == nullptr) == (special == nullptr)) fields.fail("a template item is either a Sequence or a SpecialToken");
    json_fields named(sequence != nullptr ? *sequence : *special, fields.where());
    const std::string id = named.text("id");
    named.get("type_id"); // segment ids: not for decoders
    named.done();
    if (sequence != nullptr) {
      if (id != "A" || seen_text) fields.fail("\"single\" must hold sequence A once");
      seen_text = true;
      continue;
    }
    const value* known = specials.find(id);
    if (known == nullptr) fields.fail("a special token of \"single\" is not in \"special_tokens\"");
    json_fields token(*known, fields.where());
    for (const value& number : token.array("ids")) {
      const bool valid = number.is_int() && number.as_int() >= 0 && number.as_int() < static_cast<std::int64_t>(table.texts.size()) &&
                         table.texts[static_cast<std::size_t>(number.as_int())];
      if (!valid) fields.fail("a special token's id is not in the vocabulary");
      (seen_text ? behind : before).push_back(static_cast<token_id>(number.as_int()));
    }
  }
  if (!seen_text) fields.fail("\"single\" must hold sequence A once");
  table.prefix.insert(table.prefix.begin(), before.begin(), before.end());
  table.suffix.insert(table.suffix.end(), behind.begin(), behind.end());
}

void read_post_processor(const value* item, token_table_parts& table, const std::string& where, int depth = 0) {
  if (item == nullptr) return;
  json_fields fields(*item, where);
  const std::string type = fields.text("type");
  if (type == "Sequence") {
    if (depth == 8) fields.fail("sequences are nested too deeply");
    for (const value& inner : fields.array("processors")) read_post_processor(&inner, table, where, depth + 1);
  } else if (type == "ByteLevel") { // concerns offsets only
    for (const char* option : {"add_prefix_space", "trim_offsets", "use_regex"}) fields.flag(option, true);
  } else if (type == "TemplateProcessing") {
    read_template(fields, table);
    fields.get("pair");
  } else {
    fields.fail("unknown post-processor \"" + type.substr(0, 64) + "\"");
  }
  fields.done();
}

} // namespace

std::shared_ptr<const tokenizer> tokenizer_from_json(const value& tokenizer_json, const value& tokenizer_config, std::string_view name) {
  const std::string where(name);
  json_fields fields(tokenizer_json, where);
  bpe_tokenizer_parts parts;
  read_model(fields.need("model"), parts, where + ": model");
  if (const value* added = fields.get("added_tokens")) {
    if (!added->is_array()) fields.fail("\"added_tokens\" must be an array");
    std::vector<added_token> tokens;
    for (const value& item : added->as_array()) tokens.push_back(read_added_token(item, where + ": added_tokens"));
    parts.table.listed += tokens.size();
    add_tokens(std::move(tokens), parts.table, where + ": added_tokens");
  }
  parts.in_model.resize(parts.table.texts.size());
  for (const added_token& token : parts.table.added) {
    if (token.special) parts.in_model[static_cast<std::size_t>(token.id)] = false;
  }
  parts.normalizers = read_normalizers(fields.get("normalizer"), where + ": normalizer");
  for (added_token& token : parts.table.added) {
    if (token.normalized) token.normal_form = normalize(parts.normalizers, token.content);
  }
  parts.pre_tokenizers = read_pre_tokenizers(fields.get("pre_tokenizer"), where + ": pre_tokenizer");
  parts.table.decoder = read_decoder(fields.get("decoder"), where + ": decoder");
  read_post_processor(fields.get("post_processor"), parts.table, where + ": post_processor");
  // Truncation and padding belong to batches of a training library; servers set their own limits.
  for (const char* ignored : {"version", "truncation", "padding"}) fields.get(ignored);
  fields.done();
  apply_config(tokenizer_config, parts.table, where);
  return std::make_shared<bpe_tokenizer>(std::move(parts));
}

} // namespace troupe
