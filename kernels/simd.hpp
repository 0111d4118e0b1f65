// What the CPU kernels share. Private to .cpp files. A hot function is compiled once per instruction set, and picked for the machine at
// load time. TROUPE_CLONES does so with plain loops, which the compiler turns into vectors by itself. Where sums must stay in registers,
// TROUPE_PER_CPU makes one version for each width of registers out of a template over the vector type: wider vectors than the machine's
// would go through memory, element by element.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>

// Sanitizers instrument the resolver of a multi-versioned function, which runs before they are set up: one version there.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define TROUPE_CLONES __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
// `result` name`parameters` { return body<V>`arguments`; }
#define TROUPE_PER_CPU(result, name, parameters, body, arguments)                                          \
  __attribute__((target("default"))) result name parameters { return body<simd::f32x4> arguments; }        \
  __attribute__((target("arch=x86-64-v3"))) result name parameters { return body<simd::f32x8> arguments; } \
  __attribute__((target("arch=x86-64-v4"))) result name parameters { return body<simd::f32x16> arguments; }
#else
#define TROUPE_CLONES
#define TROUPE_PER_CPU(result, name, parameters, body, arguments) \
  result name parameters { return body<simd::f32x4> arguments; }
#endif
#define TROUPE_INLINE [[gnu::always_inline]] inline

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi" // vectors are passed between functions that are always inlined
#endif

namespace troupe::cpu::simd {

inline constexpr std::int64_t lanes = 16;              // that sums are kept in, whatever the vectors
typedef float f32x4 __attribute__((vector_size(16)));  // SSE, NEON
typedef float f32x8 __attribute__((vector_size(32)));  // AVX2
typedef float f32x16 __attribute__((vector_size(64))); // AVX-512
template <class V>
inline constexpr std::int64_t width = sizeof(V) / sizeof(float);

template <class V>
TROUPE_INLINE V load(const float* from) {
  V v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

template <class V>
TROUPE_INLINE void store(float* to, const V& v) {
  std::memcpy(to, &v, sizeof v);
}

// of[0 .. lanes) added as a fixed tree: 8 apart, then 4, 2, 1.
TROUPE_INLINE float sum(const float* of) {
  float part[lanes];
  for (int i = 0; i < lanes; ++i) part[i] = of[i];
  for (int i = 0; i < 8; ++i) part[i] += part[i + 8];
  for (int i = 0; i < 4; ++i) part[i] += part[i + 4];
  return (part[0] + part[2]) + (part[1] + part[3]);
}

// The largest of x[0 .. n), NaNs passed over; -inf for none.
TROUPE_INLINE float largest(const float* x, std::int64_t n) {
  float top[lanes];
  for (int l = 0; l < lanes; ++l) top[l] = -std::numeric_limits<float>::infinity();
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    for (int l = 0; l < lanes; ++l) top[l] = x[i + l] > top[l] ? x[i + l] : top[l];
  }
  for (; i < n; ++i) top[0] = x[i] > top[0] ? x[i] : top[0];
  for (int l = 0; l < 8; ++l) top[l] = top[l] > top[l + 8] ? top[l] : top[l + 8];
  for (int l = 0; l < 4; ++l) top[l] = top[l] > top[l + 4] ? top[l] : top[l + 4];
  const float a = top[0] > top[1] ? top[0] : top[1], b = top[2] > top[3] ? top[2] : top[3];
  return a > b ? a : b;
}

// e^x within 2 ulp for x in [-87, 88]; 0 below, e^88 above, NaN for NaN. Branchless, for loops that the compiler vectorises. Range
// reduction by ln 2 in two parts and the degree-5 polynomial of the Cephes library's expf (S. Moshier).
TROUPE_INLINE float exp(float x) {
  constexpr float magic = 12582912.0F; // 1.5 * 2^23: adding it rounds to an integer, kept in the low mantissa bits
  const float capped = x > 88.0F ? 88.0F : x;
  const float shifted = capped * 1.44269504F + magic;
  const float n = shifted - magic;
  const float r = (capped - n * 0.693359375F) - n * -2.12194440e-4F;
  float p = r * 1.9875691500e-4F + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * (r * r) + r + 1.0F;
  const float power = std::bit_cast<float>((std::bit_cast<std::uint32_t>(shifted) - 0x4b400000U + 127U) << 23);
  return x < -87.0F ? 0.0F : p * power;
}

} // namespace troupe::cpu::simd
