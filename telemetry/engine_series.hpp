// The series of what the engine holds, and of its steps. Part of metrics' implementation.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "telemetry/metrics.hpp"
#include "telemetry/series.hpp"
#include "telemetry/statistic_checks.hpp"

namespace troupe::telemetry {

// Thread-safe.
class engine_series {
 public:
  engine_series(prometheus::Registry& registry, const label_map& model, std::int32_t replicas, statistic_checks& checks);

  void step(std::uint64_t duration_ns, std::int64_t sequences, std::int64_t batched_tokens) noexcept;
  void preempted(std::int64_t count) noexcept;
  void set(std::size_t replica, const engine_state& now) noexcept;
  // The gauges follow set() when a scrape comes, all at once. What each replica was last set to, for gauges of groups.
  std::vector<engine_state> update_gauges();

 private:
  statistic_checks& checks_;
  prometheus::Counter& preemptions_;
  prometheus::Gauge &running_, &waiting_, &kv_used_, &kv_cached_, &kv_free_, &kv_usage_, &speculating_;
  prometheus::Histogram &step_time_, &step_sequences_, &step_tokens_;
  std::mutex guard_;
  std::vector<engine_state> engines_; // by replica
};

} // namespace troupe::telemetry
