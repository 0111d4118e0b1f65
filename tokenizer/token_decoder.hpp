// Decoders of tokenizer.json, boiled down to what each token contributes: bytes that do not depend on its neighbours, and what the
// first token of a text loses.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/value.hpp"

namespace troupe {

enum class lead_rule : std::uint8_t {
  none,
  strip_space,     // the first token's leading blank goes
  joined_by_space, // tokens are joined by blanks: the same thing
  drop_marks,      // every word mark in the first token goes (Metaspace)
};

class decoder_stage {
 public:
  virtual ~decoder_stage() = default;
  virtual std::string apply(std::string text) const = 0;
};

struct token_decoder {
  std::vector<std::unique_ptr<decoder_stage>> stages; // text of one token -> its bytes
  lead_rule lead = lead_rule::joined_by_space;
  std::string mark; // drop_marks: the word mark

  // What the token with this text adds to text already begun.
  std::string bytes_of(std::string_view token) const;
};

// The "decoder" member (maybe null). Throws load_error on an unknown stage, option or order of stages.
token_decoder read_decoder(const value* item, const std::string& where);

token_decoder make_byte_level_decoder();
// "▁" is a blank, "<0xHH>" is a byte; the first blank goes if `strip`.
token_decoder make_sentencepiece_decoder(bool strip);

} // namespace troupe
