// What the CPU kernels share. Private to .cpp files. TROUPE_CLONES compiles a hot function once per instruction set and picks at load
// time. Inside, arithmetic on f32x16 becomes whatever the machine has (one AVX-512 register, two AVX2, four SSE or NEON); comparisons
// are written as plain loops, which the compiler turns into vectors by itself, because GCC takes comparisons of vectors apart in clones.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>

// Sanitizers instrument the resolver of a multi-versioned function, which runs before they are set up: one version there.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define TROUPE_CLONES __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define TROUPE_CLONES
#endif
#define TROUPE_INLINE [[gnu::always_inline]] inline

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi" // vectors are passed between functions that are always inlined
#endif

namespace troupe::cpu::simd {

inline constexpr std::int64_t lanes = 16;
typedef float f32x16 __attribute__((vector_size(64)));

TROUPE_INLINE f32x16 load(const float* from) {
  f32x16 v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

TROUPE_INLINE void store(float* to, const f32x16& v) { std::memcpy(to, &v, sizeof v); }


// Lanes added as a fixed tree: 8 apart, then 4, 2, 1.
TROUPE_INLINE float sum(const f32x16& v) {
  float part[lanes];
  store(part, v);
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
