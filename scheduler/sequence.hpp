// One choice of a request as the scheduler sees it: facts only, the rest is computed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/ids.hpp"
#include "core/sampling.hpp"
#include "core/step.hpp"

namespace troupe {

struct sequence_request {
  sequence_id id;
  std::vector<token_id> prompt; // not empty
  sampling_params sampling;
  stop_conditions stop;
  std::optional<std::int32_t> prompt_logprobs;
  std::int32_t priority = 0; // lower is earlier; equal ones by arrival
  // Index of an earlier choice of this request with the same prompt: its rows are shared where possible.
  std::optional<std::int32_t> same_prompt_as;
  std::string cache_salt; // cached prefixes are shared by sequences of equal salt only
  std::uint64_t arrival_ns = 0;
  std::optional<std::uint64_t> queue_deadline_ns; // not scheduled for the first time by then: timed out
  std::optional<std::uint64_t> total_deadline_ns; // not ended by then: timed out
};

// Steady-clock nanoseconds; 0 is "not reached".
struct sequence_times {
  std::uint64_t arrival_ns = 0;
  std::uint64_t scheduled_ns = 0; // first planned
  std::uint64_t first_token_ns = 0;
  std::uint64_t finished_ns = 0;
};

// A sequence with all that was made of it so far; enough to go on with it on another device group.
struct sequence_progress {
  sequence_request request;
  std::vector<token_id> outputs;  // sampled and confirmed
  std::int32_t scored = 0;        // prompt positions whose scores were reported
  std::int32_t cached_tokens = 0; // of the prompt, found computed when first scheduled
  sequence_times times;
  std::int32_t faults_in_a_row = 0; // device faults in flight since the last new token
  std::int32_t losses_in_a_row = 0; // device losses of any kind, likewise
};

// What one apply() made of one sequence.
struct sequence_update {
  sequence_id id;
  std::vector<token_id> tokens;            // new outputs, a stop token that ended the sequence not among them
  std::vector<token_scores> scores;        // one per token, when asked for
  std::vector<token_scores> prompt_scores; // of prompt positions 1, 2, .. in order, each once
  std::optional<finish_reason> finish;
  std::optional<error> failure;   // with finish == failed
  std::int32_t cached_tokens = 0; // of the prompt: found computed when the sequence was first scheduled
  std::int32_t output_tokens = 0; // in all so far; a stop token counts (it was generated)
  sequence_times times;
};

} // namespace troupe
