// Clamps, counts and logs what cannot be. Part of metrics' implementation.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "telemetry/metrics.hpp"
#include "telemetry/series.hpp"

namespace troupe::telemetry {

// What can be reported wrongly; the log has one line for each at most.
enum class statistic : std::uint8_t {
  prompt_tokens,
  generation_tokens,
  cached_tokens,
  preemptions,
  drafts,
  step_sequences,
  step_tokens,
  running,
  waiting,
  kv_blocks,
  duration,
  outcome_label,
  http_status,
  group,
  moved,
  count
};

// Thread-safe.
class statistic_checks {
 public:
  statistic_checks(prometheus::Registry& registry, metrics::log_function log); // no function: to stderr

  void bad(statistic which, std::string_view detail) noexcept;
  // 0 for what is negative.
  std::int64_t checked(statistic which, std::int64_t value) noexcept;
  // 0 for a difference of two clock readings that ran backwards, which arrives as a number near 2^64.
  double seconds(std::uint64_t ns) noexcept;

 private:
  prometheus::Counter& invalid_;
  const metrics::log_function log_;
  std::array<std::atomic<bool>, static_cast<std::size_t>(statistic::count)> logged_{};
};

} // namespace troupe::telemetry
