#include "kernels/parallel.hpp"
#include "kernels/simd.hpp"
#include "kernels/swiglu.hpp"

namespace troupe::cpu {
namespace {

TROUPE_INLINE simd::f32x16 gated(const simd::f32x16& gate, const simd::f32x16& up) { return gate / (simd::exp(-gate) + 1.0F) * up; }

TROUPE_CLONES void swiglu_row(const float* gate, const float* up, std::int64_t n, float* y) {
  std::int64_t i = 0;
  for (; i + simd::lanes <= n; i += simd::lanes) simd::store(y + i, gated(simd::load(gate + i), simd::load(up + i)));
  if (i == n) return;
  float tail_gate[simd::lanes] = {}, tail_up[simd::lanes] = {}, tail_y[simd::lanes];
  for (std::int64_t k = 0; i + k < n; ++k) {
    tail_gate[k] = gate[i + k];
    tail_up[k] = up[i + k];
  }
  simd::store(tail_y, gated(simd::load(tail_gate), simd::load(tail_up)));
  for (std::int64_t k = 0; i + k < n; ++k) y[i + k] = tail_y[k];
}

} // namespace

void swiglu(thread_pool& pool, const swiglu_args& args) {
  for_rows(pool, args.rows, 4 * args.columns, [&args](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const float* gate = args.gate_up + row * args.gate_up_stride;
      swiglu_row(gate, gate + args.columns, args.columns, args.y + row * args.y_stride);
    }
  });
}

} // namespace troupe::cpu
