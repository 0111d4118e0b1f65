// Portable 16-lane vectors for the CPU kernels. Private to .cpp files: the compiler maps a vector to whatever the machine has (one AVX-512
// register, two AVX2, four SSE or NEON), and TROUPE_CLONES compiles a hot function once per instruction set and picks at load time.
#pragma once

#include <cstdint>
#include <cstring>

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
typedef std::int32_t i32x16 __attribute__((vector_size(64)));
typedef std::uint32_t u32x16 __attribute__((vector_size(64)));
typedef std::uint16_t u16x16 __attribute__((vector_size(32)));

TROUPE_INLINE f32x16 load(const float* from) {
  f32x16 v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

TROUPE_INLINE void store(float* to, const f32x16& v) { std::memcpy(to, &v, sizeof v); }

TROUPE_INLINE f32x16 splat(float x) { return f32x16{} + x; }

TROUPE_INLINE f32x16 max(const f32x16& a, const f32x16& b) { return a > b ? a : b; } // b where a is NaN

TROUPE_INLINE u32x16 load_u16(const std::uint16_t* from) {
  u16x16 v;
  std::memcpy(&v, from, sizeof v);
  return __builtin_convertvector(v, u32x16);
}

// IEEE binary16 -> binary32, exact: the 15 value bits moved into place carry an exponent that is 112 too small, which a
// multiplication by 2^112 mends for normal and subnormal numbers alike; infinities and NaNs get the full exponent.
TROUPE_INLINE f32x16 widen_f16(const u32x16& half) {
  const u32x16 value_bits = (half & 0x7fffU) << 13;
  const f32x16 finite = (f32x16)value_bits * 0x1p112F;
  const u32x16 special = (half & 0x7c00U) == 0x7c00U ? (u32x16{} + 0x7f800000U) : u32x16{};
  return (f32x16)((u32x16)finite | special | (half & 0x8000U) << 16);
}

TROUPE_INLINE f32x16 widen_bf16(const u32x16& half) { return (f32x16)(half << 16); }

// Lanes added as a fixed tree: ((0+8)+(4+12)) + ...
TROUPE_INLINE float sum(const f32x16& v) {
  float part[lanes];
  store(part, v);
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) part[i] += part[i + width];
  }
  return part[0];
}

TROUPE_INLINE float max(const f32x16& v) {
  float part[lanes];
  store(part, v);
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) part[i] = part[i] > part[i + width] ? part[i] : part[i + width];
  }
  return part[0];
}

// e^x within 2 ulp for x in [-87, 88]; 0 below, e^88 above, NaN for NaN. Range reduction by ln 2 in two parts and the degree-5
// polynomial of the Cephes library's expf (S. Moshier).
TROUPE_INLINE f32x16 exp(const f32x16& x) {
  constexpr float magic = 12582912.0F; // 1.5 * 2^23: adding it rounds to an integer, kept in the low mantissa bits
  const f32x16 capped = x > 88.0F ? splat(88.0F) : x;
  const f32x16 shifted = capped * 1.44269504F + magic;
  const f32x16 n = shifted - magic;
  const f32x16 r = (capped - n * 0.693359375F) - n * -2.12194440e-4F;
  f32x16 p = r * 1.9875691500e-4F + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * (r * r) + r + 1.0F;
  const u32x16 exponent = ((u32x16)shifted - 0x4b400000U + 127U) << 23;
  return x < -87.0F ? f32x16{} : p * (f32x16)exponent;
}

} // namespace troupe::cpu::simd
