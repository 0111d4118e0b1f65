// Incremental text: bytes in, whole characters out, each exactly once, stop strings held back.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/ids.hpp"
#include "tokenizer/tokenizer.hpp"

namespace troupe {

// One sequence's text so far. Seeded with the prompt's tail so that the first output joins on properly; no prompt text ever comes
// out. A character that begins in the prompt and ends in the output is output; bytes of the prompt that never become a character are
// dropped. Joined, the parts equal the whole text whatever the cuts.
class incremental_detokenizer {
 public:
  // An empty tail, or one without any text, means that generated text begins the whole text: a leading blank is dropped where the
  // tokenizer's decoder drops one.
  incremental_detokenizer(std::shared_ptr<const tokenizer> tokens, std::span<const token_id> prompt_tail, bool skip_special = true);

  // Text that became final with this token: whole characters only.
  std::string push(token_id token);
  // What is still held (an unfinished character becomes U+FFFD).
  std::string finish();

 private:
  std::string take(bool last);

  std::shared_ptr<const tokenizer> tokens_;
  bool skip_special_;
  bool at_start_;
  std::string held_;             // bytes of a character that is not complete yet: at most three
  std::size_t prompt_bytes_ = 0; // the first this many bytes of held_ are the prompt's
};

struct stop_match {
  std::string text; // safe to send now
  bool stopped = false;
  std::string matched; // the stop string, when stopped
};

// Watches generated text for stop strings. Text that may still become a stop is held; it is released once when it cannot. The stop
// that ends first wins, the longest of those that end together: so the outcome does not depend on how the text was cut. Work is
// linear in the text times the number of stops.
class stop_scanner {
 public:
  // Empty stop strings are ignored. `include_in_output`: the stop string stays in the text, so nothing needs to be held.
  stop_scanner(std::vector<std::string> stops, bool include_in_output);
  // `armed` is false while fewer than min_tokens tokens were generated: text passes and no match counts, nor may a later match
  // begin in it. After a match, text behind it is dropped.
  stop_match push(std::string_view text, bool armed = true);
  // End of the sequence: everything held.
  std::string finish();

 private:
  struct watched {
    std::string text;
    std::vector<std::size_t> fallback; // by matched length: the next shorter prefix that the matched one ends with
    std::size_t matched = 0;           // bytes of `text` that the text so far ends with

    explicit watched(std::string stop);
    void step(char next);
  };

  std::vector<watched> stops_;
  bool include_;
  std::string held_;
};

} // namespace troupe
