// Incremental text: bytes in, whole characters out, each exactly once, stop strings held back.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/ids.hpp"
#include "tokenizer/tokenizer.hpp"

namespace troupe {

// One sequence's text so far. Seeded with the prompt's tail so that the first output joins on properly; no prompt text ever comes out.
class incremental_detokenizer {
 public:
  // `at_start`: generated text begins the whole text (empty prompt), so a leading blank is stripped where the decoder says so.
  incremental_detokenizer(std::shared_ptr<const tokenizer> tokens, std::span<const token_id> prompt_tail, bool skip_special = true);

  // Text that became final with this token: whole characters only.
  std::string push(token_id token);
  // What is still held (an unfinished character becomes U+FFFD).
  std::string finish();

 private:
  std::shared_ptr<const tokenizer> tokens_;
  bool skip_special_;
  bool at_start_;
  std::string held_; // bytes of a character that is not complete yet
};

struct stop_match {
  std::string text;      // safe to send now
  bool stopped = false;
  std::string matched;   // the stop string, when stopped
};

// Watches generated text for stop strings. Text that may still become a stop is held; it is released once when it cannot.
class stop_scanner {
 public:
  stop_scanner(std::vector<std::string> stops, bool include_in_output);
  // `armed` is false while fewer than min_tokens tokens were generated: text passes and no match counts.
  stop_match push(std::string_view text, bool armed = true);
  // End of the sequence: everything held.
  std::string finish();

 private:
  std::vector<std::string> stops_;
  bool include_;
  std::string held_;
};

} // namespace troupe
