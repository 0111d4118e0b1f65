#include "apps/bench/calibration.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>

#include "apps/bench/statistics.hpp"

namespace troupe::bench {
namespace {

constexpr std::int32_t kRoom = 2; // tokens that step_stopwatch wants behind a context

std::vector<double> doubling(std::int32_t last) {
  std::vector<double> axis;
  for (std::int32_t x = 1; x < last; x *= 2) axis.push_back(x);
  axis.push_back(last);
  return axis;
}

// 1, 2, 3, 4, 6, 8, 12 ..: kernels take rows in groups, so their cost has steps.
std::vector<double> half_doubling(std::int32_t last) {
  std::set<double> axis;
  for (const double x : doubling(last)) axis.insert({x, std::floor(x * 1.5)});
  axis.erase(axis.upper_bound(last), axis.end());
  return {axis.begin(), axis.end()};
}

std::int32_t whole(double x) { return static_cast<std::int32_t>(x); }

std::vector<double> midmeans(const std::vector<timed_point>& points) {
  std::vector<double> out;
  for (const timed_point& p : points) out.push_back(midmean(p.ns));
  return out;
}

} // namespace

calibration::calibration(const executor_info& info) : limits(info) {
  // Contexts that all slots can have at once.
  const std::int32_t blocks_each = info.num_blocks / (info.max_num_seqs + 1);
  const std::int32_t longest = std::min(info.max_model_len, blocks_each * info.block_size) - info.max_batched_tokens - kRoom;
  if (longest < 1) {
    throw std::invalid_argument("the KV cache is too small to measure with: fewer sequences or batched tokens, or more memory");
  }
  decode_rows = half_doubling(info.max_num_seqs);
  prefill_tokens = doubling(info.max_batched_tokens);
  contexts = {1, std::max(2.0, std::floor(longest / 4.0)), std::max(3.0, static_cast<double>(longest))};
  for (const double rows : decode_rows) {
    for (const double c : contexts) decode.push_back({{whole(rows), whole(c), 0, 0}, {}});
  }
  for (const double n : prefill_tokens) {
    for (const double c : contexts) prefill.push_back({{0, 1, whole(n), whole(c)}, {}});
  }
  if (info.max_num_seqs == 1) return; // a decode row and a prefill never meet
  const std::int32_t rows = std::max(1, info.max_num_seqs / 4), tokens = std::max(1, (info.max_batched_tokens - rows) / 8);
  for (const timed_shape& shape : {timed_shape{rows, 1, tokens, 0}, {rows, 1, 0, 0}, {0, 1, tokens, 0}}) mixed.push_back({shape, {}});
}

simulation::device_table calibration::table() const {
  simulation::device_table t;
  t.limits = limits;
  t.decode = {decode_rows, contexts, midmeans(decode)};
  t.prefill = {prefill_tokens, contexts, midmeans(prefill)};
  t.serving = serving_cost_of(serving);
  if (mixed.empty()) return t;
  std::vector<double> saved;
  for (std::size_t i = 0; i < mixed[0].ns.size(); ++i) saved.push_back(mixed[1].ns[i] + mixed[2].ns[i] - mixed[0].ns[i]);
  t.shared_ns = std::max(0.0, summarize(std::move(saved)).median); // one hump, and wide: a difference of three times
  return t;
}

std::vector<std::int32_t> serving_rows(const executor_info& info) {
  const std::set<std::int32_t> counts = {1, std::max(1, info.max_num_seqs / 4), info.max_num_seqs};
  return {counts.begin(), counts.end()};
}

simulation::serving_cost serving_cost_of(const serving_samples& samples) {
  simulation::serving_cost cost;
  cost.request_ns = std::max(0.0, midmean(samples.request_ns));
  double count = 0, x = 0, y = 0, xx = 0, xy = 0;
  for (const auto& [rows, ns] : samples.step_ns) {
    const double extra = midmean(ns), r = rows;
    count += 1, x += r, y += extra, xx += r * r, xy += r * extra;
  }
  if (count == 0) return cost;
  const double spread = xx - x * x / count;
  cost.row_ns = spread > 0 ? std::max(0.0, (xy - x * y / count) / spread) : 0;
  cost.step_ns = (y - cost.row_ns * x) / count;
  if (cost.step_ns >= 0) return cost;
  cost.step_ns = 0;
  cost.row_ns = std::max(0.0, xy / xx);
  return cost;
}

} // namespace troupe::bench
