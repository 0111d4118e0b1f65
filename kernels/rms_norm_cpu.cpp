#include <cmath>

#include "kernels/parallel.hpp"
#include "kernels/rms_norm.hpp"
#include "kernels/simd.hpp"

namespace troupe::cpu {
namespace {

// Sum of squares over 32 interleaved lanes, then a fixed tree, then the tail in order.
template <class V>
TROUPE_INLINE float sum_of_squares_of(const float* x, std::int64_t n) {
  constexpr std::int64_t vectors = 2 * simd::lanes / simd::width<V>;
  V sums[vectors] = {};
  std::int64_t i = 0;
  for (; i + 2 * simd::lanes <= n; i += 2 * simd::lanes) {
    for (std::int64_t v = 0; v < vectors; ++v) {
      const V a = simd::load<V>(x + i + v * simd::width<V>);
      sums[v] += a * a;
    }
  }
  float part[simd::lanes];
  for (std::int64_t v = 0; v < vectors / 2; ++v) simd::store(part + v * simd::width<V>, sums[v] + sums[v + vectors / 2]);
  float total = simd::sum(part);
  for (; i < n; ++i) total += x[i] * x[i];
  return total;
}
TROUPE_PER_CPU(float, sum_of_squares, (const float* x, std::int64_t n), sum_of_squares_of, (x, n))

TROUPE_CLONES void scale_by(const float* x, const float* weight, float scale, std::int64_t n, float* y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = x[i] * scale * weight[i];
}

} // namespace

void rms_norm(thread_pool& pool, const rms_norm_args& args) {
  for_rows(pool, args.rows, args.groups * args.columns, [&args](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      for (std::int64_t group = 0; group < args.groups; ++group) {
        const float* x = args.x + row * args.x_stride + group * args.columns;
        float* y = args.y + row * args.y_stride + group * args.columns;
        const float mean = sum_of_squares(x, args.columns) / static_cast<float>(args.columns);
        scale_by(x, args.weight, 1.0F / std::sqrt(mean + args.epsilon), args.columns, y);
      }
    }
  });
}

} // namespace troupe::cpu
