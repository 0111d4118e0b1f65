// SentencePiece .model files. The library merges and normalises; control tokens are found in the text before it sees any.
#include <sentencepiece_processor.h>

#include "core/error.hpp"
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
  void encode_text(std::string_view text, bool parse_special, std::vector<token_id>& out) const override {
    std::vector<int> ids;
    for (const text_part& part : finder_.find(text, parse_special)) {
      if (part.token != nullptr) {
        out.push_back(part.token->id);
        continue;
      }
      ids.clear();
      const std::string_view segment = text.substr(part.begin, part.end - part.begin);
      if (model_->Encode({segment.data(), segment.size()}, &ids).ok()) out.insert(out.end(), ids.begin(), ids.end());
    }
  }

  std::unique_ptr<SentencePieceProcessor> model_; // its const calls are thread-safe
  added_token_finder finder_;
};

void read_pieces(const SentencePieceProcessor& model, token_table_parts& parts, const std::string& where) {
  for (int id = 0; id < model.GetPieceSize(); ++id) {
    std::string text = model.IdToPiece(id);
    if (!utf8::is_valid(text)) throw load_error(where + ": piece " + std::to_string(id) + " is not UTF-8");
    const bool special = model.IsControl(id) || model.IsUnknown(id);
    if (special && !text.empty()) parts.added.push_back({.id = id, .content = text, .special = true});
    parts.set_text(id, std::move(text), where);
  }
}

// tokenizer_config.json's "added_tokens_decoder": {"32000": {"content": .., flags}}.
void read_added_tokens(const value& config, token_table_parts& parts, const std::string& where) {
  const value* found = config.find("added_tokens_decoder");
  if (found == nullptr || !found->is_object()) return;
  for (const auto& [key, item] : found->as_object().entries()) {
    if (key.empty() || key.size() > 8 || key.find_first_not_of("0123456789") != std::string::npos) {
      throw load_error(where + ": tokenizer_config: added_tokens_decoder: a key is no token id");
    }
    add_token(read_added_token(item, where + ": tokenizer_config: added_tokens_decoder", std::stoll(key)), parts, where);
  }
}

} // namespace

std::shared_ptr<const tokenizer> tokenizer_from_sentencepiece(std::string_view model, const value& tokenizer_config, std::string_view name) {
  const std::string where(name);
  auto processor = std::make_unique<SentencePieceProcessor>();
  const auto status = processor->LoadFromSerializedProto({model.data(), model.size()});
  if (!status.ok() || processor->GetPieceSize() <= 0) throw load_error(where + ": not a SentencePiece model");
  token_table_parts parts;
  read_added_tokens(tokenizer_config, parts, where); // first, so that their flags count
  read_pieces(*processor, parts, where);
  // The library drops the blank it put in front; a model without one decodes "\u2581" as it is.
  parts.decoder = make_sentencepiece_decoder(true);
  const auto token = [&](int id) { return id >= 0 && id < processor->GetPieceSize() ? std::optional<token_id>(id) : std::nullopt; };
  if (tokenizer_config.find("bos_token") == nullptr) parts.bos = token(processor->bos_id());
  if (const auto eos = token(processor->eos_id()); eos && tokenizer_config.find("eos_token") == nullptr) parts.eos.push_back(*eos);
  apply_config(tokenizer_config, parts, where);
  // Llama's own loader puts BOS before a text unless told otherwise.
  const value* add_bos = tokenizer_config.find("add_bos_token");
  if ((add_bos == nullptr || add_bos->is_null()) && parts.bos) parts.prefix = {*parts.bos};
  return std::make_shared<sentencepiece_tokenizer>(std::move(processor), std::move(parts));
}

} // namespace troupe
