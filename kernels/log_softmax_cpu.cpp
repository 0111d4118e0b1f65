#include "kernels/log_softmax.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/simd.hpp"

namespace troupe::cpu {
namespace {

constexpr std::int64_t stretch = 1024; // elements added up in f32 before the sum moves to f64

TROUPE_CLONES float max_of(const float* x, std::int64_t n) {
  std::int32_t nans = 0;
  for (std::int64_t i = 0; i < n; ++i) nans |= x[i] != x[i] ? 1 : 0;
  return nans != 0 ? std::numeric_limits<float>::quiet_NaN() : simd::largest(x, n);
}

// Sum of e^(x - top) over at most a stretch.
TROUPE_CLONES float sum_exp(const float* x, std::int64_t n, float top) {
  float weight[stretch + simd::lanes];
  for (std::int64_t i = 0; i < n; ++i) weight[i] = simd::exp(x[i] - top);
  for (std::int64_t i = n; i < n + simd::lanes; ++i) weight[i] = 0;
  float total[simd::lanes] = {};
  for (std::int64_t i = 0; i < n; i += simd::lanes) {
    for (std::int64_t l = 0; l < simd::lanes; ++l) total[l] += weight[i + l];
  }
  return simd::sum(total);
}

} // namespace

float max_logit(const float* logits, std::int64_t count) { return max_of(logits, count); }

softmax_scale log_softmax(const float* logits, std::int64_t count) {
  softmax_scale scale;
  scale.top = max_of(logits, count);
  if (!std::isfinite(scale.top)) return scale;
  double sum = 0;
  for (std::int64_t at = 0; at < count; at += stretch) sum += sum_exp(logits + at, std::min(stretch, count - at), scale.top);
  scale.log_sum = std::log(std::max(sum, 1.0)); // the largest logit alone adds 1
  scale.usable = true;
  return scale;
}

} // namespace troupe::cpu
