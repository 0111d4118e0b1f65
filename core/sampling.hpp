// How the next token is chosen, and when a sequence ends.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/ids.hpp"

namespace troupe {

struct token_bias {
  token_id token = 0;
  float bias = 0; // added to the logit

  friend bool operator==(const token_bias&, const token_bias&) = default;
};

// What a device needs to draw tokens for one sequence. Every float is finite.
// Order of application: repetition, presence and frequency penalties; logit_bias; suppression below min_tokens;
// temperature; top_k; top_p; min_p; draw. Reported logprobs are the log-softmax of the raw logits, before any of these.
struct sampling_params {
  float temperature = 1.0F;        // below 1e-5: greedy
  float top_p = 1.0F;              // (0, 1]; 1 is off
  float min_p = 0.0F;              // [0, 1]; 0 is off
  std::int32_t top_k = 0;          // 0 is off
  float repetition_penalty = 1.0F; // > 0; divides positive and multiplies negative logits of prompt and output tokens
  float presence_penalty = 0.0F;   // [-2, 2]; subtracted once for each token in the output so far
  float frequency_penalty = 0.0F;  // [-2, 2]; subtracted per occurrence in the output so far
  std::uint64_t seed = 0;          // the draw at position p depends on (seed, p) alone
  std::vector<token_bias> logit_bias;
  std::int32_t min_tokens = 0;              // the first min_tokens outputs are never one of `suppressed`
  std::vector<token_id> suppressed;         // EOS and stop tokens, when min_tokens > 0
  std::optional<std::int32_t> top_logprobs; // report the chosen token's logprob and this many best ones (0..20)

  friend bool operator==(const sampling_params&, const sampling_params&) = default;
};

// When a sequence ends. Token rules are the scheduler's, string rules the detokenizer's.
struct stop_conditions {
  std::int32_t max_tokens = 0;           // outputs at most; 0: prompt only (echo)
  std::int32_t min_tokens = 0;           // neither stop strings nor stop tokens end a sequence below this
  std::vector<token_id> stop_token_ids;  // EOS ids (unless ignore_eos) and the client's
  std::vector<std::string> stop_strings; // non-empty, UTF-8
  bool include_stop_string = false;      // keep the matched stop string in the text

  friend bool operator==(const stop_conditions&, const stop_conditions&) = default;
};

enum class finish_reason : std::uint8_t { stop, length, cancelled, failed };

} // namespace troupe
