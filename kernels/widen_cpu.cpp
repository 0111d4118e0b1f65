#include "kernels/widen.hpp"

#include "core/half.hpp"
#include "kernels/simd.hpp"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define TROUPE_HAVE_F16C 1
#endif

namespace troupe::cpu {
namespace {

TROUPE_CLONES void widen_f32(const void* from, std::int64_t from_stride, std::int64_t rows, std::int64_t columns, float* to,
                             std::int64_t to_stride) {
  const auto* source = static_cast<const float*>(from);
  for (std::int64_t row = 0; row < rows; ++row, source += from_stride, to += to_stride) {
    for (std::int64_t i = 0; i < columns; ++i) to[i] = source[i];
  }
}

TROUPE_CLONES void widen_f16(const void* from, std::int64_t from_stride, std::int64_t rows, std::int64_t columns, float* to,
                             std::int64_t to_stride) {
  const auto* source = static_cast<const std::uint16_t*>(from);
  for (std::int64_t row = 0; row < rows; ++row, source += from_stride, to += to_stride) {
    for (std::int64_t i = 0; i < columns; ++i) to[i] = half_to_float(source[i]);
  }
}

TROUPE_CLONES void widen_bf16(const void* from, std::int64_t from_stride, std::int64_t rows, std::int64_t columns, float* to,
                              std::int64_t to_stride) {
  const auto* source = static_cast<const std::uint16_t*>(from);
  for (std::int64_t row = 0; row < rows; ++row, source += from_stride, to += to_stride) {
    for (std::int64_t i = 0; i < columns; ++i) to[i] = bfloat16_to_float(source[i]);
  }
}

#ifdef TROUPE_HAVE_F16C
// The processor's own conversion, 8 at a time.
__attribute__((target("avx,f16c"))) void widen_f16_f16c(const void* from, std::int64_t from_stride, std::int64_t rows, std::int64_t columns,
                                                        float* to, std::int64_t to_stride) {
  const auto* source = static_cast<const std::uint16_t*>(from);
  for (std::int64_t row = 0; row < rows; ++row, source += from_stride, to += to_stride) {
    std::int64_t i = 0;
    for (; i + 8 <= columns; i += 8) {
      _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i))));
    }
    for (; i < columns; ++i) to[i] = _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(source[i])));
  }
}

// Likewise, 16 at a time.
__attribute__((target("avx512f,f16c"))) void widen_f16_avx512(const void* from, std::int64_t from_stride, std::int64_t rows,
                                                              std::int64_t columns, float* to, std::int64_t to_stride) {
  const auto* source = static_cast<const std::uint16_t*>(from);
  for (std::int64_t row = 0; row < rows; ++row, source += from_stride, to += to_stride) {
    std::int64_t i = 0;
    for (; i + 16 <= columns; i += 16) {
      _mm512_storeu_ps(to + i, _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + i))));
    }
    for (; i < columns; ++i) to[i] = _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(source[i])));
  }
}
#endif

widen_rows_fn best_f16() {
#ifdef TROUPE_HAVE_F16C
  if (__builtin_cpu_supports("avx512f")) return widen_f16_avx512;
  if (__builtin_cpu_supports("avx") && __builtin_cpu_supports("f16c")) return widen_f16_f16c;
#endif
  return widen_f16;
}

} // namespace

widen_rows_fn widen_rows_for(dtype type) {
  static const widen_rows_fn f16 = best_f16();
  switch (type) {
    case dtype::f16:
      return f16;
    case dtype::bf16:
      return widen_bf16;
    default:
      return widen_f32;
  }
}

} // namespace troupe::cpu
