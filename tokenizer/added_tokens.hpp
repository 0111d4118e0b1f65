// Tokens that are found in the text itself, before any splitting: control tokens and user-added ones, with their flags.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/ids.hpp"

namespace troupe {

struct added_token {
  token_id id = 0;
  std::string content;
  std::string normal_form = {}; // of a normalized one: its content as the normaliser writes it
  bool special = false;         // a control token
  bool normalized = false;      // found in normalised text, by its normalised content
  bool single_word = false;     // not inside a word
  bool lstrip = false;          // takes the blanks before it along
  bool rstrip = false;          // and those behind it
};

// A part of a text: an added token, or text between such.
struct text_part {
  const added_token* token = nullptr;
  std::size_t begin = 0;
  std::size_t end = 0;
};

// Finds added tokens: leftmost first, the longest at a place. Semantics of Hugging Face's AddedVocabulary.
class added_token_finder {
 public:
  // Later entries with the same pattern do not count. Empty patterns never match. Tokens must outlive this.
  added_token_finder() = default;
  void add(std::string_view pattern, const added_token& token);

  // Cuts `text` (UTF-8) into parts, in order, none empty but tokens. With `parse_special` off control tokens stay text.
  std::vector<text_part> find(std::string_view text, bool parse_special) const;
  bool empty() const { return nodes_.empty(); }

 private:
  struct node {
    std::vector<std::pair<unsigned char, std::uint32_t>> children; // sorted by byte
    const added_token* token = nullptr;                            // a pattern ends here
  };
  std::uint32_t child(std::uint32_t from, unsigned char byte) const; // 0: none
  std::pair<const added_token*, std::size_t> longest_at(std::string_view text, std::size_t at) const;

  std::vector<node> nodes_;                // nodes_[0] is the root
  std::array<std::uint32_t, 256> first_{}; // the root's children, directly
};

} // namespace troupe
