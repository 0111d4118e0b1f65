#include "telemetry/engine_series.hpp"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>

#include <algorithm>

#include "telemetry/buckets.hpp"

namespace troupe::telemetry {
namespace {

prometheus::Gauge& kv_blocks(prometheus::Registry& registry, const label_map& model, const char* state) {
  return add_gauge(registry, "troupe_kv_blocks", "KV cache blocks by state; the three add up to the pool.",
                   with_label(model, "state", state));
}

} // namespace

engine_series::engine_series(prometheus::Registry& registry, const label_map& model, std::int32_t replicas, statistic_checks& checks)
    : checks_(checks),
      preemptions_(add_counter(registry, "troupe_preemptions_total", "Sequences put back in the queue to free KV blocks.", model)),
      running_(add_gauge(registry, "troupe_requests_running", "Sequences that hold a slot on the device.", model)),
      waiting_(add_gauge(registry, "troupe_requests_waiting", "Sequences in the queue.", model)),
      kv_used_(kv_blocks(registry, model, "used")),
      kv_cached_(kv_blocks(registry, model, "cached")),
      kv_free_(kv_blocks(registry, model, "free")),
      kv_usage_(add_gauge(registry, "troupe_kv_usage_ratio", "Used KV blocks over all KV blocks, 0 to 1.", model)),
      speculating_(add_gauge(registry, "troupe_spec_active", "1 while drafts are verified where there are any, else 0.", model)),
      step_time_(add_histogram(registry, "troupe_step_seconds", "Duration of one device step.", model, time_buckets())),
      step_sequences_(add_histogram(registry, "troupe_step_sequences", "Sequences in one device step.", model, sequence_buckets())),
      step_tokens_(add_histogram(registry, "troupe_step_tokens", "Tokens computed in one device step.", model, token_buckets())),
      engines_(static_cast<std::size_t>(std::max(1, replicas))) {}

void engine_series::step(std::uint64_t duration_ns, std::int64_t sequences, std::int64_t batched_tokens) noexcept {
  step_time_.Observe(checks_.seconds(duration_ns));
  step_sequences_.Observe(static_cast<double>(checks_.checked(statistic::step_sequences, sequences)));
  step_tokens_.Observe(static_cast<double>(checks_.checked(statistic::step_tokens, batched_tokens)));
}

void engine_series::preempted(std::int64_t count) noexcept {
  preemptions_.Increment(static_cast<double>(checks_.checked(statistic::preemptions, count)));
}

void engine_series::set(std::size_t replica, const engine_state& now) noexcept {
  engine_state clean;
  clean.speculating = now.speculating;
  clean.running = checks_.checked(statistic::running, now.running);
  clean.waiting = checks_.checked(statistic::waiting, now.waiting);
  clean.kv_blocks_total = checks_.checked(statistic::kv_blocks, now.kv_blocks_total);
  clean.kv_blocks_used = checks_.checked(statistic::kv_blocks, now.kv_blocks_used);
  clean.kv_blocks_cached = checks_.checked(statistic::kv_blocks, now.kv_blocks_cached);
  if (clean.kv_blocks_used > clean.kv_blocks_total || clean.kv_blocks_cached > clean.kv_blocks_total - clean.kv_blocks_used) {
    checks_.bad(statistic::kv_blocks, "used and cached are more than all");
    clean.kv_blocks_used = std::min(clean.kv_blocks_used, clean.kv_blocks_total);
    clean.kv_blocks_cached = std::min(clean.kv_blocks_cached, clean.kv_blocks_total - clean.kv_blocks_used);
  }
  const std::lock_guard lock(guard_);
  engines_[replica] = clean;
}

std::vector<engine_state> engine_series::update_gauges() {
  std::vector<engine_state> each;
  {
    const std::lock_guard lock(guard_);
    each = engines_;
  }
  engine_state now;
  for (const engine_state& e : each) {
    now.running += e.running;
    now.waiting += e.waiting;
    now.kv_blocks_total += e.kv_blocks_total;
    now.kv_blocks_used += e.kv_blocks_used;
    now.kv_blocks_cached += e.kv_blocks_cached;
    now.speculating |= e.speculating;
  }
  running_.Set(static_cast<double>(now.running));
  waiting_.Set(static_cast<double>(now.waiting));
  kv_used_.Set(static_cast<double>(now.kv_blocks_used));
  kv_cached_.Set(static_cast<double>(now.kv_blocks_cached));
  kv_free_.Set(static_cast<double>(now.kv_blocks_total - now.kv_blocks_used - now.kv_blocks_cached));
  speculating_.Set(now.speculating ? 1 : 0);
  kv_usage_.Set(now.kv_blocks_total > 0 ? static_cast<double>(now.kv_blocks_used) / static_cast<double>(now.kv_blocks_total) : 0);
  return each;
}

} // namespace troupe::telemetry
