// SentencePiece .model files. The library reads them, and encodes where a model needs more than merges (unigram, character maps).
// Control and user-defined tokens are found in the text before it sees any.
#include <sentencepiece_processor.h>

#include <algorithm>

#include "core/error.hpp"
#include "tokenizer/bpe_tokenizer.hpp"
#include "tokenizer/plain_marker.hpp"
#include "tokenizer/sentencepiece_file.hpp"
#include "tokenizer/special_tokens.hpp"
#include "tokenizer/token_table.hpp"
#include "tokenizer/utf8.hpp"

namespace troupe {
namespace {

using sentencepiece::SentencePieceProcessor;

class sentencepiece_tokenizer final : public token_table {
 public:
  sentencepiece_tokenizer(std::unique_ptr<SentencePieceProcessor> model, token_table_parts given)
      : token_table(std::move(given)), model_(std::move(model)) {
    for (const added_token& token : parts().added) finder_.add(token.content, token);
  }

 private:
  void encode_text(std::string_view text, const encode_options& options, std::vector<token_id>& out) const override {
    std::vector<int> ids;
    for (const text_part& part : finder_.find(text, options.parse_special)) {
      if (part.token != nullptr) {
        out.push_back(part.token->id);
        continue;
      }
      ids.clear();
      std::string_view segment = text.substr(part.begin, part.end - part.begin);
      std::string unmarked;
      if (!options.plain_marker.empty() && segment.find(options.plain_marker) != std::string_view::npos) {
        segment = unmarked = without_markers(segment, options.plain_marker);
      }
      if (model_->Encode({segment.data(), segment.size()}, &ids).ok()) out.insert(out.end(), ids.begin(), ids.end());
    }
  }

  std::unique_ptr<SentencePieceProcessor> model_; // its const calls are thread-safe
  added_token_finder finder_;
};

void read_pieces(const SentencePieceProcessor& model, const std::vector<piece_kind>& kinds, token_table_parts& parts,
                 const std::string& where) {
  for (int id = 0; id < model.GetPieceSize(); ++id) {
    std::string text = model.IdToPiece(id);
    if (!utf8::is_valid(text)) throw load_error(where + ": piece " + std::to_string(id) + " is not UTF-8");
    const piece_kind kind = kinds[static_cast<std::size_t>(id)];
    const bool special = is_control(kind);
    if ((special || kind == piece_kind::user_defined) && !text.empty())
      parts.added.push_back({.id = id, .content = text, .special = special});
    parts.set_text(id, std::move(text), where);
  }
}

// tokenizer_config.json's "added_tokens_decoder": {"32000": {"content": .., flags}}.
void read_added_tokens(const value& config, token_table_parts& parts, const std::string& where) {
  const value* found = config.find("added_tokens_decoder");
  if (found == nullptr || !found->is_object()) return;
  std::vector<added_token> tokens;
  for (const auto& [key, item] : found->as_object().entries()) {
    if (key.empty() || key.size() > 8 || key.find_first_not_of("0123456789") != std::string::npos) {
      throw load_error(where + ": tokenizer_config: added_tokens_decoder: a key is no token id");
    }
    tokens.push_back(read_added_token(item, where + ": tokenizer_config: added_tokens_decoder", std::stoll(key)));
  }
  parts.listed += tokens.size();
  add_tokens(std::move(tokens), parts, where + ": tokenizer_config: added_tokens_decoder");
}

// BOS and EOS: tokenizer_config.json's, else the model's.
void read_specials(const SentencePieceProcessor& model, const value& config, token_table_parts& parts, const std::string& where) {
  const auto token = [&](int id) { return id >= 0 && id < model.GetPieceSize() ? std::optional<token_id>(id) : std::nullopt; };
  if (config.find("bos_token") == nullptr) parts.bos = token(model.bos_id());
  if (const auto eos = token(model.eos_id()); eos && config.find("eos_token") == nullptr) parts.eos.push_back(*eos);
  apply_config(config, parts, where);
  // Llama's own loader puts BOS before a text unless told otherwise.
  const value* add_bos = config.find("add_bos_token");
  if ((add_bos == nullptr || add_bos->is_null()) && parts.bos) parts.prefix = {*parts.bos};
}

// The usual case, Llama's and Mistral's: BPE on plain text, which needs no more than the pieces and their scores.
std::shared_ptr<const tokenizer> plain_bpe(const SentencePieceProcessor& model, sentencepiece_file file, token_table_parts table,
                                           const std::string& where) {
  bpe_tokenizer_parts parts;
  parts.table = std::move(table);
  std::vector<float> scores;
  for (int id = 0; id < model.GetPieceSize(); ++id) scores.push_back(model.GetScore(id));
  for (const piece_kind kind : file.kinds) parts.in_model.push_back(!is_control(kind));
  parts.in_model.resize(parts.table.texts.size());
  for (const added_token& token : parts.table.added) {
    if (token.special) parts.in_model[static_cast<std::size_t>(token.id)] = false;
  }
  make_scored_model(file.kinds, scores, file.blank_first, parts, where);
  for (added_token& token : parts.table.added) {
    if (token.normalized) token.normal_form = normalize(parts.normalizers, token.content);
  }
  return std::make_shared<bpe_tokenizer>(std::move(parts));
}

} // namespace

std::shared_ptr<const tokenizer> tokenizer_from_sentencepiece(std::string_view model, const value& tokenizer_config,
                                                              std::string_view name) {
  const std::string where(name);
  auto processor = std::make_unique<SentencePieceProcessor>();
  const auto status = processor->LoadFromSerializedProto({model.data(), model.size()});
  const auto file = read_sentencepiece_file(model);
  if (!status.ok() || !file || file->kinds.empty() || processor->GetPieceSize() != static_cast<int>(file->kinds.size())) {
    throw load_error(where + ": not a SentencePiece model");
  }
  token_table_parts parts;
  parts.listed = file->kinds.size();
  read_added_tokens(tokenizer_config, parts, where); // first, so that their flags count
  read_pieces(*processor, file->kinds, parts, where);
  read_specials(*processor, tokenizer_config, parts, where);
  const bool has_bytes = std::find(file->kinds.begin(), file->kinds.end(), piece_kind::byte) != file->kinds.end();
  if (file->bpe && file->plain_text && has_bytes) return plain_bpe(*processor, *file, std::move(parts), where);
  parts.decoder = make_sentencepiece_decoder(file->blank_first);
  for (added_token& token : parts.added) token.normal_form = token.content; // found in the text as it is, whatever its flags
  return std::make_shared<sentencepiece_tokenizer>(std::move(processor), std::move(parts));
}

} // namespace troupe
