// Drives an executor with the scheduler's own plans, without actors: what a step costs, and nothing of the serving side.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "core/step.hpp"
#include "scheduler/scheduler.hpp"
#include "telemetry/timeline.hpp"

namespace troupe::bench {

// One step as it went. Times are steady-clock nanoseconds.
struct driven_step {
  std::uint64_t submitted_ns = 0;
  std::uint64_t delivered_ns = 0;
  stage_times times; // as the device says
  std::int64_t decode_rows = 0;
  std::int64_t prefill_tokens = 0;
  std::vector<std::int32_t> decode_positions; // of its decode rows
};

struct driven_run {
  std::uint64_t begin_ns = 0;
  std::vector<driven_step> steps;
  std::vector<std::uint64_t> first_token_ns; // per request, as they were given
  std::vector<std::uint64_t> finished_ns;    // likewise; 0 for what stop_after cut short
  std::vector<std::vector<token_id>> outputs;
};

struct run_options {
  std::int32_t output_tokens = 1; // of each request; nothing else ends one
  std::int32_t plans_in_flight = 2;
  // Ends the run once so many steps decoded all requests at once; none: all requests to their ends.
  std::optional<std::int32_t> stop_after;
};

class step_driver {
 public:
  // Both outlive this. Requests are greedy, and prefixes are not cached.
  step_driver(step_executor& executor, telemetry::timeline& timeline);
  ~step_driver();
  step_driver(const step_driver&) = delete;
  step_driver& operator=(const step_driver&) = delete;

  // All requests at once. Throws std::runtime_error when a step fails or a request is refused.
  driven_run run(const std::vector<std::vector<token_id>>& prompts, const run_options& options);

  const executor_info& info() const { return info_; }

 private:
  struct arrival {
    step_outcome outcome;
    std::uint64_t at_ns = 0;
  };
  struct flight {
    driven_step step;
    telemetry::step_record record;
  };

  void drive(const std::vector<std::vector<token_id>>& prompts, const run_options& options, driven_run& run);
  void admit(const std::vector<std::vector<token_id>>& prompts, const run_options& options);
  void plan_ahead(std::int32_t plans_in_flight);
  arrival await();
  void absorb(driven_run& run, arrival done);
  void drop_requests(std::size_t count);
  void drop_plans();

  step_executor& executor_;
  telemetry::timeline& timeline_;
  executor_info info_;
  scheduler scheduler_;
  request_id first_id_ = 1; // of the running run
  std::size_t open_ = 0;    // requests that have not ended
  std::deque<flight> flying_;

  std::mutex guard_;
  std::condition_variable arrived_;
  std::deque<arrival> arrivals_;
};

// Milliseconds between the results of consecutive steps that decoded `rows` rows and nothing else, the first `warmup` of them left out;
// with the positions of each one's rows.
struct decode_interval {
  double ms = 0;
  const driven_step* step = nullptr;
};
std::vector<decode_interval> decode_intervals(const driven_run& run, std::int64_t rows, std::size_t warmup);

// `count` prompts of `length` random ids below `vocab_size`.
std::vector<std::vector<token_id>> random_prompts(std::size_t count, std::int32_t length, std::int32_t vocab_size, std::uint64_t seed);

} // namespace troupe::bench
