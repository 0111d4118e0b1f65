#include "kernels/parallel.hpp"
#include "kernels/simd.hpp"
#include "kernels/swiglu.hpp"

namespace troupe::cpu {
namespace {

TROUPE_CLONES void swiglu_row(const float* __restrict gate, const float* __restrict up, std::int64_t n, float* __restrict y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = gate[i] / (1.0F + simd::exp(-gate[i])) * up[i];
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
