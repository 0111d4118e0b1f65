#include "kernels/log_softmax.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/simd.hpp"

namespace troupe::cpu {
namespace {

using simd::f32x16;
constexpr std::int64_t lanes = simd::lanes;
constexpr std::int64_t stretch = 1024; // elements added up in f32 before the sum moves to f64

TROUPE_CLONES float max_of(const float* x, std::int64_t n) {
  f32x16 top = simd::splat(-std::numeric_limits<float>::infinity());
  f32x16 fault{}; // 1 in lanes that saw a NaN
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const f32x16 v = simd::load(x + i);
    top = simd::max(v, top);
    fault = v == v ? fault : simd::splat(1.0F);
  }
  float best = simd::max(top);
  bool nan = simd::max(fault) > 0;
  for (; i < n; ++i) {
    best = std::max(best, x[i]);
    nan = nan || std::isnan(x[i]);
  }
  return nan ? std::numeric_limits<float>::quiet_NaN() : best;
}

TROUPE_CLONES float sum_exp(const float* x, std::int64_t n, float top) {
  f32x16 total{};
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) total += simd::exp(simd::load(x + i) - top);
  if (i < n) {
    float rest[lanes];
    for (std::int64_t k = 0; k < lanes; ++k) rest[k] = i + k < n ? x[i + k] : -std::numeric_limits<float>::infinity();
    total += simd::exp(simd::load(rest) - top);
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
