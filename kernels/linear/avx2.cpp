// Compiled with AVX2, FMA and F16C on x86-64 (see cmake/TroupeCpuKernels.cmake); elsewhere there is no such kernel set.
#include "kernels/linear/layout.hpp"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>

#include "kernels/linear/tile.hpp"

namespace troupe::cpu::detail {
namespace {

struct avx2 {
  static constexpr int width = 8;
  static constexpr int tile_rows = 4;
  static constexpr bool signed_bytes = true;
  using vf = __m256;
  using vi = __m256i;
  using vb = __m256i;

  static vf zero() { return _mm256_setzero_ps(); }
  static vf load(const float* from) { return _mm256_loadu_ps(from); }
  static void store(float* to, vf v) { _mm256_storeu_ps(to, v); }
  static vf broadcast(const float* from) { return _mm256_broadcast_ss(from); }
  static vf add(vf a, vf b) { return _mm256_add_ps(a, b); }
  static vf mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
  static vf fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
  static vf negate(vf v) { return _mm256_xor_ps(v, _mm256_set1_ps(-0.0F)); }
  static vf to_float(vi v) { return _mm256_cvtepi32_ps(v); }

  static __m128i load_128(const void* from) { return _mm_loadu_si128(static_cast<const __m128i*>(from)); }
  static __m128i load_64(const void* from) { return _mm_loadl_epi64(static_cast<const __m128i*>(from)); }
  static vf load_half(const unsigned char* from) { return _mm256_cvtph_ps(load_128(from)); }
  static vf load_u8(const unsigned char* from) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(load_64(from))); }
  static vf load_i8(const unsigned char* from) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load_64(from))); }
  template <dtype Type>
  static vf load_plain(const unsigned char* from) {
    if constexpr (Type == dtype::f32)
      return _mm256_castsi256_ps(load_bytes(from));
    else if constexpr (Type == dtype::f16)
      return load_half(from);
    else
      return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_128(from)), 16));
  }

  static vb load_bytes(const unsigned char* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
  static vb low_halves(vb v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
  static vb high_halves(vb v) { return _mm256_and_si256(_mm256_srli_epi16(v, 4), _mm256_set1_epi8(15)); }
  // low | (high shifted left by Shift, or right by -Shift, and cut to Mask).
  template <int Shift, int Mask>
  static vb add_high(vb low, vb high) {
    vb moved = high;
    if constexpr (Shift > 0) moved = _mm256_slli_epi16(high, Shift);
    if constexpr (Shift < 0) moved = _mm256_srli_epi16(high, -Shift);
    return _mm256_or_si256(low, _mm256_and_si256(moved, _mm256_set1_epi8(Mask)));
  }

  static int load_int(const void* from) {
    int value;
    std::memcpy(&value, from, sizeof value);
    return value;
  }
  static vi zero_int() { return _mm256_setzero_si256(); }
  template <int Log2>
  static vi scaled_int(const unsigned char* from) {
    return _mm256_slli_epi32(_mm256_set1_epi32(load_int(from)), Log2);
  }
  static vi max_int(vi a, vi b) { return _mm256_max_epi32(a, b); }
  static vi magnitude_bits(vf v) { return _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0x7fffffff)); }
  static vi round_to_int(vf v) { return _mm256_cvtps_epi32(v); }
  static int sum_of_16(const vi* v) {
    const vi eight = _mm256_add_epi32(v[0], v[1]);
    const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
  }
  static int horizontal_max(vi v) {
    const __m128i four = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    const __m128i two = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
  }
  static void store_as_bytes(unsigned char* to, vi v) {
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packs_epi16(words, words));
  }
  static float round_to_half(float v) { return _cvtsh_ss(_cvtss_sh(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)); }

  // VPMADDUBSW adds two products in 16 bits and would saturate: as many of its results are added in 16 bits as surely fit
  // (2 * 127 * largest quant each), then they are widened.
  template <int Bits>
  struct dot {
    static constexpr int fit = Bits == 4 ? 8 : Bits == 5 ? 4 : Bits == 6 ? 2 : 1;
    vi sum;
    vi narrow;
    void start(vi first) { sum = first; }
    template <int K>
    void add(vb weights, const unsigned char* activations) {
      const vb x = _mm256_set1_epi32(load_int(activations));
      // 8 bits are signed: the sign moves over to the activation, whose quants are never -128.
      const vi products =
          Bits == 8 ? _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(x, weights)) : _mm256_maddubs_epi16(weights, x);
      narrow = K % fit == 0 ? products : _mm256_add_epi16(narrow, products);
      if constexpr (fit >= 4)
        asm volatile("" : "+x"(narrow)); // one after the other, or the compiler has 32 of these wait in memory for 16 registers
      if constexpr (K % fit == fit - 1) sum = _mm256_add_epi32(sum, _mm256_madd_epi16(narrow, _mm256_set1_epi16(1)));
    }
    vi finish() const { return sum; } // groups have 8 vectors (6 bits: 4), a multiple of `fit`
  };
};

} // namespace

const kernel_set* avx2_kernels() {
  static const kernel_set set = make_kernel_set<avx2>("avx2");
  return &set;
}

} // namespace troupe::cpu::detail

#else

namespace troupe::cpu::detail {
const kernel_set* avx2_kernels() { return nullptr; }
} // namespace troupe::cpu::detail

#endif
