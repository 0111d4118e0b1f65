// Compiled with AVX-512 F, BW, DQ, VL and VNNI on x86-64 (see cmake/TroupeCpuKernels.cmake); elsewhere there is no such kernel set.
#include "kernels/linear/layout.hpp"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__) && defined(__AVX512VNNI__)
#include <immintrin.h>

#include "kernels/linear/tile.hpp"

namespace troupe::cpu::detail {
namespace {

struct avx512 {
  static constexpr int width = 16;
  static constexpr int tile_rows = 8;
  static constexpr bool signed_bytes = false; // VPDPBUSD multiplies unsigned by signed
  using vf = __m512;
  using vi = __m512i;
  using vb = __m512i;

  static vf zero() { return _mm512_setzero_ps(); }
  static vf load(const float* from) { return _mm512_loadu_ps(from); }
  static void store(float* to, vf v) { _mm512_storeu_ps(to, v); }
  static vf broadcast(const float* from) { return _mm512_set1_ps(*from); }
  static vf add(vf a, vf b) { return _mm512_add_ps(a, b); }
  static vf mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
  static vf fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
  static vf negate(vf v) { return _mm512_xor_ps(v, _mm512_set1_ps(-0.0F)); }
  static vf to_float(vi v) { return _mm512_cvtepi32_ps(v); }

  static __m256i load_256(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
  static __m128i load_128(const void* from) { return _mm_loadu_si128(static_cast<const __m128i*>(from)); }
  static vf load_half(const unsigned char* from) { return _mm512_cvtph_ps(load_256(from)); }
  static vf load_u8(const unsigned char* from) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(load_128(from))); }
  static vf load_i8(const unsigned char* from) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_128(from))); }
  template <dtype Type>
  static vf load_plain(const unsigned char* from) {
    if constexpr (Type == dtype::f32)
      return _mm512_loadu_ps(from);
    else if constexpr (Type == dtype::f16)
      return load_half(from);
    else
      return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_256(from)), 16));
  }

  static vb load_bytes(const unsigned char* from) { return _mm512_loadu_si512(from); }
  static vb flip_sign_bits(vb v) { return _mm512_xor_si512(v, _mm512_set1_epi8(-128)); }
  static vb low_halves(vb v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
  static vb high_halves(vb v) { return _mm512_and_si512(_mm512_srli_epi16(v, 4), _mm512_set1_epi8(15)); }
  // low | (high shifted left by Shift, or right by -Shift, and cut to Mask).
  template <int Shift, int Mask>
  static vb add_high(vb low, vb high) {
    vb moved = high;
    if constexpr (Shift > 0) moved = _mm512_slli_epi16(high, Shift);
    if constexpr (Shift < 0) moved = _mm512_srli_epi16(high, -Shift);
    return _mm512_ternarylogic_epi32(low, moved, _mm512_set1_epi8(Mask), 0xf8); // a | (b & c)
  }

  static int load_int(const void* from) {
    int value;
    std::memcpy(&value, from, sizeof value);
    return value;
  }
  static vi zero_int() { return _mm512_setzero_si512(); }
  template <int Log2>
  static vi scaled_int(const unsigned char* from) {
    return _mm512_slli_epi32(_mm512_set1_epi32(load_int(from)), Log2);
  }
  static vi max_int(vi a, vi b) { return _mm512_max_epi32(a, b); }
  static vi magnitude_bits(vf v) { return _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7fffffff)); }
  static vi round_to_int(vf v) { return _mm512_cvtps_epi32(v); }
  static int sum_of_16(const vi* v) { return _mm512_reduce_add_epi32(v[0]); }
  static int horizontal_max(vi v) { return _mm512_reduce_max_epi32(v); }
  static void store_as_bytes(unsigned char* to, vi v) { _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(v)); }
  static float round_to_half(float v) { return _cvtsh_ss(_cvtss_sh(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)); }

  template <int Bits>
  struct dot {
    vi sum;
    void start(vi first) { sum = first; }
    template <int K>
    void add(vb weights, const unsigned char* activations) {
      sum = _mm512_dpbusd_epi32(sum, weights, _mm512_set1_epi32(load_int(activations)));
    }
    vi finish() const { return sum; }
  };
};

} // namespace

const kernel_set* avx512vnni_kernels() {
  static const kernel_set set = make_kernel_set<avx512>("avx512vnni");
  return &set;
}

} // namespace troupe::cpu::detail

#else

namespace troupe::cpu::detail {
const kernel_set* avx512vnni_kernels() { return nullptr; }
} // namespace troupe::cpu::detail

#endif
