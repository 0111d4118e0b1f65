// A tokenizer for weights that have none (--load-format dummy): a token's text is its number.
#pragma once

#include <string>
#include <vector>

#include "tokenizer/tokenizer.hpp"

namespace troupe::apps {

// Texts are read as one token a byte.
class number_tokenizer final : public tokenizer {
 public:
  explicit number_tokenizer(std::int32_t vocab_size) : vocab_size_(vocab_size) {}

  std::vector<token_id> encode(std::string_view text, encode_options) const override {
    std::vector<token_id> tokens;
    for (const char c : text) tokens.push_back(static_cast<unsigned char>(c) % vocab_size_);
    return tokens;
  }
  std::string token_bytes(token_id token) const override {
    return token >= 0 && token < vocab_size_ ? " " + std::to_string(token) : std::string();
  }
  std::string decode(std::span<const token_id> tokens, bool) const override {
    std::string text;
    for (const token_id t : tokens) text += token_bytes(t);
    return text;
  }
  std::int32_t vocab_size() const override { return vocab_size_; }
  bool is_special(token_id) const override { return false; }
  std::optional<token_id> find(std::string_view) const override { return std::nullopt; }
  std::optional<token_id> bos() const override { return std::nullopt; }
  std::vector<token_id> eos() const override { return {}; }
  bool adds_bos() const override { return false; }
  const std::vector<std::string>& special_texts() const override { return specials_; }
  bool strips_leading_space() const override { return false; }

 private:
  std::int32_t vocab_size_;
  std::vector<std::string> specials_;
};

} // namespace troupe::apps
