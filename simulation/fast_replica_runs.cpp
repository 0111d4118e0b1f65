// Runs of equal steps, in closed form.
#include <algorithm>
#include <cmath>

#include "kvcache/block_pool.hpp"
#include "simulation/fast_replica.hpp"

namespace troupe::simulation {
namespace {

constexpr std::int64_t kShortestRun = 4; // steps worth skipping together

} // namespace

bool fast_replica::admissible() const {
  if (waiting_.empty() || free_slots_ == 0) return false;
  const sequence& s = places_[waiting_.front()];
  return free_blocks_ >= blocks_for(s.known(), table_.limits.block_size) + (running_ == 0 ? 0 : reserve_);
}

// With two plans out that change nothing when they are absorbed and nobody to start, the next plans are decodes of the same rows
// until the first of them ends, something arrives, the cost line bends, or blocks may run short. Steps over all but two of them.
bool fast_replica::skip_run(double until_ns) {
  if (in_flight_size_ < kPlansInFlight || decoding_.empty() || !prefilling_.empty() || admissible()) return false;
  for (const flight& f : in_flight_) {
    if (!f.first.empty() || !f.last.empty()) return false;
  }
  const auto rows = static_cast<double>(decoding_.size());
  const double context = context_ / rows;
  const cost_line line = table_.decode_line(rows, context);
  std::int64_t steps = decoding_.front().first - tick_ - 1;
  if (std::isfinite(line.until)) steps = std::min(steps, static_cast<std::int64_t>(line.until - context));
  steps = std::min(steps, free_blocks_ / static_cast<std::int64_t>(decoding_.size()) * table_.limits.block_size);
  // Of `steps` plans the last is made when the one two before it ends: that must not lie behind `until_ns`.
  const auto time_of = [&](std::int64_t n) {
    const auto k = static_cast<double>(n);
    return k * line.base + line.slope * (k * context + k * (k - 1) / 2);
  };
  if (steps < kShortestRun || line.base + line.slope * context <= 0) return false;
  steps = 2 + last_within(steps - 2, until_ns - device_free_ns_, time_of);
  if (steps < kShortestRun) return false;
  take_run(steps, rows, time_of);
  return true;
}

// The largest n <= most with time_of(n) <= time, or a negative number.
template <class F>
std::int64_t fast_replica::last_within(std::int64_t most, double time, const F& time_of) {
  if (time_of(most) <= time) return most;
  std::int64_t low = -1, high = most; // time_of(high) > time
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (time_of(middle) <= time ? low : high) = middle;
  }
  return low;
}

template <class F>
void fast_replica::take_run(std::int64_t steps, double rows, const F& time_of) {
  const double begin = device_free_ns_, total = time_of(steps);
  // Gaps grow along the run: so many pieces that one differs from the next by about a bucket.
  const double first = time_of(1), last = total - time_of(steps - 1);
  const auto pieces = static_cast<std::int64_t>(std::clamp(std::abs(last / first - 1) * 40, 1.0, 40.0));
  for (std::int64_t i = 0; i < pieces; ++i) {
    const std::int64_t from = steps * i / pieces, to = steps * (i + 1) / pieces;
    if (to > from) results_.itl.add((time_of(to) - time_of(from)) / static_cast<double>(to - from), rows * static_cast<double>(to - from));
  }
  results_.busy_ns += total;
  results_.steps += static_cast<double>(steps);
  for (std::int64_t i = 0; i < steps % table_.limits.block_size; ++i) free_blocks_ -= needs_block_[phase(tick_ + i)];
  free_blocks_ -= static_cast<std::int32_t>(steps / table_.limits.block_size * static_cast<std::int64_t>(decoding_.size()));
  tick_ += steps;
  context_ += rows * static_cast<double>(steps);
  device_free_ns_ = begin + total;
  now_ns_ = begin + time_of(steps - 2); // the last of the run was planned then
  front().end_ns = begin + time_of(steps - 1);
  back().end_ns = device_free_ns_;
}

} // namespace troupe::simulation
