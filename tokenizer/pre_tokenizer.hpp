// Pre-tokenizers of tokenizer.json: cut normalised text into the words that the model encodes one by one.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/value.hpp"

namespace troupe {

struct piece {
  std::string_view text; // never empty behind a stage
  bool first = false;    // begins where the whole input begins
};

// Holds text that stages rewrote, as long as pieces point into it.
using text_arena = std::deque<std::string>;

class pre_tokenizer {
 public:
  virtual ~pre_tokenizer() = default;
  // Appends the parts of `in` to `out`.
  virtual void split(const piece& in, std::vector<piece>& out, text_arena& arena) const = 0;
};

enum class split_behavior : std::uint8_t { removed, isolated, merged_with_previous, merged_with_next, contiguous };

struct pre_tokenizer_list {
  std::vector<std::unique_ptr<pre_tokenizer>> stages; // applied in order
  // The last stage maps every byte to a printable character, and that mapping was left out: the model is to work on bytes.
  bool byte_level = false;
};

// The "pre_tokenizer" member (maybe null): nested sequences come out flat. Throws load_error on an unknown stage or option.
pre_tokenizer_list read_pre_tokenizers(const value* item, const std::string& where);

std::unique_ptr<pre_tokenizer> make_regex_split(std::string_view pattern, const std::string& where);
std::unique_ptr<pre_tokenizer> make_digits(bool individual);
std::unique_ptr<pre_tokenizer> make_punctuation(split_behavior behavior);
// `map`: write each byte as its printable character (needed unless it is the last stage).
std::unique_ptr<pre_tokenizer> make_byte_level(bool add_prefix_space, bool use_regex, bool map);

std::vector<piece> pre_tokenize(const pre_tokenizer_list& list, piece whole, text_arena& arena);

} // namespace troupe
