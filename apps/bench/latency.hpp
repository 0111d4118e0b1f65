// Decode step times and times to the first token on a bare executor, beside what the machine's ceilings allow.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/bench/machine.hpp"
#include "apps/bench/model_cost.hpp"
#include "apps/bench/statistics.hpp"
#include "apps/bench/step_driver.hpp"
#include "core/value.hpp"

namespace troupe::bench {

struct latency_options {
  std::vector<std::int32_t> batch_sizes;    // of the decode steps
  std::int32_t context = 1024;              // tokens that a row sees, in the mean over the measured steps
  std::int32_t steps = 64;                  // measured
  std::int32_t warmup = 8;                  // decode steps before them
  std::vector<std::int32_t> prompt_lengths; // of the prefills
  std::int32_t repeats = 5;                 // of each prefill, after one to warm up
  std::int32_t plans_in_flight = 2;
  std::uint64_t seed = 1;
};

// Where a step's compute went, seconds, in the mean over steps. Kernel groups as far as the device tells them apart.
struct split_times {
  double compute = 0;
  double collective_wait = 0, collective_move = 0;
  std::vector<std::pair<std::string, double>> groups; // in the order of kernel_group
};

struct decode_figures {
  std::int32_t batch = 0;
  double context = 0; // mean of tokens that a row saw
  summary step;       // seconds between results
  double fastest = 0; // seconds
  double compute_median = 0;
  split_times split;
  double bytes = 0; // of weights and KV that a step must read, in the mean
  double idle_share = 0;
};

struct prefill_figures {
  std::int32_t prompt = 0;
  summary first_token; // seconds from admission to the first token's arrival
  split_times split;   // of the whole prompt's steps together
  double linear_flops = 0, attention_flops = 0;
};

struct latency_figures {
  std::vector<decode_figures> decode;
  std::vector<prefill_figures> prefill;
};

// KV blocks and tokens of a step that the measurement needs.
struct latency_needs {
  std::int32_t max_num_seqs = 1;
  std::int32_t max_batched_tokens = 1;
  std::int32_t max_model_len = 1;
  std::int32_t num_blocks = 1;
};
// `max_batched_tokens`: as the user wants it; none: each prompt in one step.
latency_needs needs_of(const latency_options& options, std::int32_t block_size, std::optional<std::int32_t> max_batched_tokens);

decode_figures measure_decode(step_driver& driver, telemetry::timeline& timeline, const latency_options& options, std::int32_t batch,
                              const model_cost& cost);
prefill_figures measure_prefill(step_driver& driver, const latency_options& options, std::int32_t prompt, const model_cost& cost);

// Seconds that `bytes` take at the ceiling, and how many times as long it took; none without a ceiling.
std::optional<double> floor_seconds(double bytes, const rate_ceilings& ceilings);
std::optional<double> over_floor(const decode_figures& figures, const rate_ceilings& ceilings);
// Share of the matmul ceiling that the prefill reached by its median.
std::optional<double> matmul_share(const prefill_figures& figures, const rate_ceilings& ceilings);

// {"rank", "decode": [..], "prefill": [..]}: the split of each measured batch and prompt, as a rank that prints nothing has it.
value splits_json(std::int32_t rank, const latency_figures& figures);
value_array decode_json(const std::vector<decode_figures>& figures, const rate_ceilings& ceilings);
value_array prefill_json(const std::vector<prefill_figures>& figures, const rate_ceilings& ceilings);
std::string latency_table(const latency_figures& figures, const rate_ceilings& ceilings);

} // namespace troupe::bench
