// The series of requests, their tokens and their drafts. Part of metrics' implementation.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "telemetry/metrics.hpp"
#include "telemetry/series.hpp"
#include "telemetry/statistic_checks.hpp"

namespace troupe::telemetry {

// Thread-safe.
class request_series {
 public:
  request_series(prometheus::Registry& registry, const label_map& model, statistic_checks& checks);

  void finished(outcome how, const request_times& times) noexcept;
  void first_token(std::uint64_t since_arrival_ns) noexcept;
  void token_gap(std::uint64_t ns) noexcept;
  void tokens(std::int64_t prompt, std::int64_t generated, std::int64_t cached) noexcept;
  void drafts(std::size_t place, std::int64_t drafted, std::int64_t accepted) noexcept;

 private:
  std::uint64_t admit_cached(std::uint64_t wanted) noexcept;

  statistic_checks& checks_;
  std::array<prometheus::Counter*, 5> requests_{}; // by outcome
  // Prompt tokens are counted before cached ones and read after them (a scrape follows the order of creation),
  // so that none shows more cached tokens than prompt tokens.
  prometheus::Counter &cached_tokens_, &prompt_tokens_, &generation_tokens_;
  // Likewise accepted drafts are counted after the drafted ones and read before them.
  std::array<prometheus::Counter*, draft_places> accepted_{}, drafted_{};
  prometheus::Histogram &time_to_first_token_, &inter_token_latency_, &time_per_output_token_;
  prometheus::Histogram &queue_time_, &prefill_time_, &decode_time_, &request_time_;
  std::atomic<std::uint64_t> prompt_total_{0}, cached_total_{0}; // what the two counters have been given
};

} // namespace troupe::telemetry
