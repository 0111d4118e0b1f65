// Requests of random token ids for a serving side in this process: all at once or as they would arrive, and what came back when.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "apps/bench/statistics.hpp"
#include "apps/bench/workload.hpp"
#include "core/service.hpp"

namespace troupe::bench {

struct generation_options {
  std::size_t count = 100;                               // requests, the burst among them
  std::size_t burst = 0;                                 // of them, under way from the start, as if they had begun before
  double rate = std::numeric_limits<double>::infinity(); // of the others, a second; infinite: all at once
  double burstiness = 1;                                 // 1: Poisson
  length_range input{128, 128};
  length_range output{128, 128};
  std::int64_t vocab_size = 1000;
  std::uint64_t seed = 0;
};

struct planned_generation {
  double due = 0; // seconds from the start
  std::vector<token_id> prompt;
  std::int32_t output_tokens = 1;
};

// By time. The same options give the same load. The burst's outputs are cut short by evenly drawn amounts, so that they end one by one
// as those of a load that has been running would.
std::vector<planned_generation> plan_generations(const generation_options& options);

// Outputs in between are those of the load that was wanted: from the first token of the last request of the burst until the last request
// was sent. Without a burst it is the whole run.
struct steady_window {
  double from = 0, to = 0; // seconds
  std::size_t gaps = 0;    // between outputs, that lie within: those of the records
  double concurrency = 0;  // mean number of requests under way
};

struct generation_outcome {
  std::vector<request_record> records; // gaps: those within the window
  steady_window steady;
};

// Sends them and waits for all of their ends. `first_id` and what follows are free to use.
generation_outcome run_generations(request_handler& handler, const std::vector<planned_generation>& load, std::size_t burst,
                                   request_id first_id);

} // namespace troupe::bench
