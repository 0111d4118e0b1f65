// What every kind of tokenizer shares: token texts, control tokens, the way back to text. Kinds differ in how they encode.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/added_tokens.hpp"
#include "tokenizer/token_decoder.hpp"
#include "tokenizer/tokenizer.hpp"
#include "tokenizer/vocabulary.hpp"

namespace troupe {

struct token_table_parts {
  std::vector<std::optional<std::string>> texts; // by id; none: no such token
  std::deque<added_token> added;                 // of equal texts the first counts, control tokens before others
  token_decoder decoder;
  std::vector<token_id> prefix, suffix; // what add_special_tokens puts round a text
  std::optional<token_id> bos;
  std::vector<token_id> eos;

  // Tokens that the file lists. Tables are as long as the largest id, so ids far beyond this are refused.
  std::size_t listed = 0;

  // Grows `texts` as needed. Throws load_error (`where` first) on a bad id, and on one that another text has.
  void set_text(std::int64_t id, std::string text, const std::string& where);
};

class token_table : public tokenizer {
 public:
  explicit token_table(token_table_parts parts);

  std::string token_bytes(token_id token) const override;
  std::string first_bytes(token_id token) const override;
  std::string decode(std::span<const token_id> tokens, bool skip_special) const override;
  std::int32_t vocab_size() const override { return static_cast<std::int32_t>(parts_.texts.size()); }
  bool is_special(token_id token) const override { return known(token) && special_[static_cast<std::size_t>(token)]; }
  std::optional<token_id> find(std::string_view token_text) const override { return by_text_.find(token_text); }
  std::optional<token_id> bos() const override { return parts_.bos; }
  std::vector<token_id> eos() const override { return parts_.eos; }
  bool adds_bos() const override { return parts_.bos && !parts_.prefix.empty() && parts_.prefix.front() == *parts_.bos; }
  const std::vector<std::string>& special_texts() const override { return special_texts_; }
  bool strips_leading_space() const override { return parts_.decoder.lead != lead_rule::none; }

  std::vector<token_id> encode(std::string_view text, encode_options options) const final;

 protected:
  // Tokens of `text` (UTF-8), the prefix and the suffix left to encode(). Plain markers are still in it.
  virtual void encode_text(std::string_view text, const encode_options& options, std::vector<token_id>& out) const = 0;
  const token_table_parts& parts() const { return parts_; }

 private:
  bool known(token_id token) const {
    return token >= 0 && static_cast<std::size_t>(token) < parts_.texts.size() && parts_.texts[static_cast<std::size_t>(token)];
  }

  token_table_parts parts_;
  text_index by_text_;
  std::vector<bool> special_;
  std::vector<std::string> special_texts_;
  std::vector<std::string> bytes_; // by id, as token_bytes
};

} // namespace troupe
