// Text <-> tokens. Immutable after load, so safe to share between threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/ids.hpp"
#include "core/value.hpp"

namespace troupe {

struct encode_options {
  bool add_special_tokens = true; // BOS/EOS where the tokenizer's own rules add them
  bool parse_special = true;      // text of control tokens becomes those tokens (Hugging Face's behaviour)
  // When not empty: added tokens are searched in the text as it is, so one with this marker inside is plain text; every marker is
  // dropped from the plain text between added tokens before that is normalised, split and encoded. Chat templates use it.
  std::string_view plain_marker = {};
};

class tokenizer {
 public:
  virtual ~tokenizer() = default;

  // Input that is not UTF-8 is read with U+FFFD for each bad byte. Near-linear in the length of the text.
  virtual std::vector<token_id> encode(std::string_view text, encode_options options = {}) const = 0;
  // The bytes that `token` adds to text already begun; maybe part of a character. Control tokens give their own text.
  // An id outside the vocabulary gives nothing.
  virtual std::string token_bytes(token_id token) const = 0;
  // The same for a token that begins a whole text: where the decoder drops a leading blank, it is dropped.
  virtual std::string first_bytes(token_id token) const {
    std::string bytes = token_bytes(token);
    if (strips_leading_space() && bytes.starts_with(' ')) bytes.erase(0, 1);
    return bytes;
  }
  // Whole text, as Hugging Face's decode (skip_special leaves control tokens out; a leading blank is stripped where the decoder
  // says so). Bytes that are no UTF-8 become U+FFFD, one per maximal ill-formed part (Unicode 15, section 3.9), as in the stream;
  // Hugging Face's ByteFallback decoder writes one per byte there.
  virtual std::string decode(std::span<const token_id> tokens, bool skip_special = true) const = 0;

  virtual std::int32_t vocab_size() const = 0;       // added tokens included
  virtual bool is_special(token_id token) const = 0; // control token: parsed from template text, never printed
  virtual std::optional<token_id> find(std::string_view token_text) const = 0;
  virtual std::optional<token_id> bos() const = 0;
  virtual std::vector<token_id> eos() const = 0;
  virtual bool adds_bos() const = 0;
  // Texts of the control tokens, longest first.
  virtual const std::vector<std::string>& special_texts() const = 0;
  // The decoder drops a leading blank of a whole text (SentencePiece kinds): first_bytes says what is left.
  virtual bool strips_leading_space() const = 0;
};

// Each throws load_error: file (or GGUF key), part, reason. An unknown stage or option is a load error.
// Hugging Face folder: tokenizer.json with tokenizer_config.json, else tokenizer.model (SentencePiece).
std::shared_ptr<const tokenizer> load_tokenizer(const std::filesystem::path& folder);
std::shared_ptr<const tokenizer> tokenizer_from_json(const value& tokenizer_json, const value& tokenizer_config, std::string_view name);
// A SentencePiece model file's contents (BPE or unigram).
std::shared_ptr<const tokenizer> tokenizer_from_sentencepiece(std::string_view model, const value& tokenizer_config, std::string_view name);
// GGUF metadata: tokenizer.ggml.model "gpt2" (with .pre) or "llama".
std::shared_ptr<const tokenizer> tokenizer_from_gguf(const value& metadata, std::string_view name);

// The chat template's source and its variables' defaults, as the checkpoint gives them; none when it has no template.
struct chat_template_source {
  std::string text;
  std::string bos_token;
  std::string eos_token;
};
std::optional<chat_template_source> find_chat_template(const std::filesystem::path& folder); // tokenizer_config.json, chat_template.jinja
std::optional<chat_template_source> find_chat_template(const value& gguf_metadata);

} // namespace troupe
