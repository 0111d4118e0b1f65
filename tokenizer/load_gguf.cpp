// Tokenizers inside GGUF files (ggml docs/gguf.md, "Tokenizer"): "gpt2" is byte-level BPE, "llama" is SentencePiece's BPE.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tokenizer/bpe_tokenizer.hpp"
#include "tokenizer/gguf_splits.hpp"
#include "tokenizer/json_fields.hpp"
#include "tokenizer/scored_pieces.hpp"
#include "tokenizer/special_tokens.hpp"
#include "tokenizer/utf8.hpp"

namespace troupe {
namespace {

class gguf_reader {
 public:
  gguf_reader(const value& metadata, std::string_view name) : metadata_(metadata), where_(name) {}

  [[noreturn]] void fail(std::string_view key, const std::string& reason) const {
    throw load_error(where_ + ": tokenizer.ggml." + std::string(key) + ": " + reason);
  }
  const std::string& where() const { return where_; }

  const value* get(std::string_view key) const { return metadata_.find("tokenizer.ggml." + std::string(key)); }
  std::optional<std::string> text(std::string_view key) const {
    const value* found = get(key);
    if (found == nullptr) return std::nullopt;
    if (!found->is_string()) fail(key, "expected a string");
    return found->as_string();
  }
  bool flag(std::string_view key, bool fallback) const {
    const value* found = get(key);
    if (found == nullptr) return fallback;
    if (!found->is_bool()) fail(key, "expected true or false");
    return found->as_bool();
  }
  const value_array* array(std::string_view key) const {
    const value* found = get(key);
    if (found != nullptr && !found->is_array()) fail(key, "expected an array");
    return found == nullptr ? nullptr : &found->as_array();
  }
  // An id of the vocabulary.
  std::optional<token_id> token(std::string_view key, std::size_t vocabulary) const {
    const value* found = get(key);
    if (found == nullptr) return std::nullopt;
    if (!found->is_int() || found->as_int() < 0 || static_cast<std::uint64_t>(found->as_int()) >= vocabulary) {
      fail(key, "not an id of the vocabulary");
    }
    return static_cast<token_id>(found->as_int());
  }

 private:
  const value& metadata_;
  std::string where_;
};

// Kinds by id.
std::vector<piece_kind> read_tokens(const gguf_reader& in, bpe_tokenizer_parts& parts) {
  const value_array* tokens = in.array("tokens");
  if (tokens == nullptr || tokens->empty()) in.fail("tokens", "missing or empty");
  if (tokens->size() > static_cast<std::size_t>(std::numeric_limits<token_id>::max())) in.fail("tokens", "too many tokens");
  const value_array* kinds = in.array("token_type");
  if (kinds != nullptr && kinds->size() != tokens->size()) in.fail("token_type", "its length differs from that of the tokens");
  std::vector<piece_kind> out;
  for (std::size_t id = 0; id < tokens->size(); ++id) {
    const value& text = (*tokens)[id];
    if (!text.is_string()) in.fail("tokens", "token " + std::to_string(id) + " is no string");
    const value* kind = kinds == nullptr ? nullptr : &(*kinds)[id];
    if (kind != nullptr && !kind->is_int()) in.fail("token_type", "entry " + std::to_string(id) + " is no integer");
    const std::int64_t number = kind == nullptr ? 1 : kind->as_int();
    if (number < 1 || number > 6) in.fail("token_type", "entry " + std::to_string(id) + " is of no known kind");
    out.push_back(static_cast<piece_kind>(number));
    parts.table.texts.emplace_back(utf8::is_valid(text.as_string()) ? text.as_string() : utf8::repair(text.as_string()));
    const bool special = is_control(out.back());
    if ((special || out.back() == piece_kind::user_defined) && !parts.table.texts.back()->empty()) {
      if (parts.table.texts.back()->size() > max_added_bytes)
        in.fail("tokens", "token " + std::to_string(id) + " is longer than 1024 bytes");
      parts.table.added.push_back({.id = static_cast<token_id>(id), .content = *parts.table.texts.back(), .special = special});
    }
    parts.in_model.push_back(!special);
  }
  return out;
}

void read_specials(const gguf_reader& in, bool adds_bos, token_table_parts& table) {
  const std::size_t size = table.texts.size();
  table.bos = in.token("bos_token_id", size);
  for (const char* key : {"eos_token_id", "eot_token_id", "eom_token_id"}) {
    const auto id = in.token(key, size);
    if (id && std::find(table.eos.begin(), table.eos.end(), *id) == table.eos.end()) table.eos.push_back(*id);
  }
  const bool add_bos = in.flag("add_bos_token", adds_bos && table.bos);
  const bool add_eos = in.flag("add_eos_token", false);
  if (add_bos && !table.bos) in.fail("add_bos_token", "set, but there is no bos_token_id");
  if (add_eos && !in.token("eos_token_id", size)) in.fail("add_eos_token", "set, but there is no eos_token_id");
  if (add_bos) table.prefix.push_back(*table.bos);
  if (add_eos) table.suffix.push_back(*in.token("eos_token_id", size));
}

text_index index_of(const bpe_tokenizer_parts& parts, const std::vector<bool>& wanted) {
  text_index index(parts.table.texts.size());
  for (std::size_t id = 0; id < parts.table.texts.size(); ++id) {
    if (wanted[id]) index.insert(*parts.table.texts[id], static_cast<token_id>(id));
  }
  return index;
}

void read_merges(const gguf_reader& in, bpe_tokenizer_parts& parts) {
  const value_array* merges = in.array("merges");
  if (merges == nullptr || merges->empty()) in.fail("merges", "missing or empty");
  const text_index index = index_of(parts, std::vector<bool>(parts.table.texts.size(), true));
  std::string merged;
  for (std::size_t rank = 0; rank < merges->size(); ++rank) {
    const value& item = (*merges)[rank];
    const std::string_view text = item.is_string() ? std::string_view(item.as_string()) : std::string_view();
    const std::size_t space = text.find(' ', 1); // the first part is never empty
    if (space == std::string_view::npos) in.fail("merges", "entry " + std::to_string(rank) + " needs two parts");
    merged.assign(text.substr(0, space)).append(text.substr(space + 1));
    const auto left = index.find(text.substr(0, space));
    const auto right = index.find(text.substr(space + 1));
    const auto whole = index.find(merged);
    if (!left || !right || !whole) in.fail("merges", "entry " + std::to_string(rank) + ": a part or the whole is not in the vocabulary");
    parts.merges.push_back({*left, *right, *whole});
  }
}

std::vector<float> read_scores(const gguf_reader& in, std::size_t count) {
  const value_array* scores = in.array("scores");
  if (scores == nullptr || scores->size() != count) in.fail("scores", "missing, or not one per token");
  std::vector<float> out;
  for (const value& score : *scores) {
    if (!score.is_number() || std::isnan(score.as_double())) in.fail("scores", "an entry is no number");
    out.push_back(static_cast<float>(score.as_double()));
  }
  return out;
}

void read_gpt2(const gguf_reader& in, bpe_tokenizer_parts& parts) {
  gguf_split split = find_gguf_split(in.text("pre").value_or("default"), in.where());
  read_tokens(in, parts);
  read_merges(in, parts);
  parts.normalizers = std::move(split.normalizers);
  parts.pre_tokenizers = std::move(split.pre_tokenizers);
  parts.model.ignore_merges = split.ignore_merges;
  parts.table.decoder = make_byte_level_decoder();
  read_specials(in, split.add_bos, parts.table);
}

void read_llama(const gguf_reader& in, bpe_tokenizer_parts& parts) {
  const std::vector<piece_kind> kinds = read_tokens(in, parts);
  const bool prefix = in.flag("add_space_prefix", true);
  make_scored_model(kinds, read_scores(in, kinds.size()), prefix, parts, in.where());
  read_specials(in, true, parts.table);
}

} // namespace

std::shared_ptr<const tokenizer> tokenizer_from_gguf(const value& metadata, std::string_view name) {
  const gguf_reader in(metadata, name);
  const std::string model = in.text("model").value_or("");
  bpe_tokenizer_parts parts;
  if (model == "gpt2") {
    read_gpt2(in, parts);
  } else if (model == "llama") {
    read_llama(in, parts);
  } else {
    in.fail("model", model.empty() ? "missing" : "unsupported tokenizer model \"" + model.substr(0, 64) + "\"");
  }
  return std::make_shared<bpe_tokenizer>(std::move(parts));
}

} // namespace troupe
