// The kernels without any instruction set in mind: 4 lanes as the compiler's own vectors of 16 bytes, which every target with SIMD
// registers has.
#include <bit>
#include <cstring>

#include "core/half.hpp"

#ifdef __GNUC__
#pragma GCC diagnostic ignored "-Wpsabi" // vectors are passed between functions of this file only
#endif

#include "kernels/linear/tile.hpp"

namespace troupe::cpu::detail {
namespace {

struct portable {
  static constexpr int width = 4;
  static constexpr int tile_rows = 4;
  static constexpr bool signed_bytes = true;
  typedef float vf __attribute__((vector_size(16)));
  typedef std::int32_t vi __attribute__((vector_size(16)));
  typedef std::uint32_t vu __attribute__((vector_size(16)));
  typedef std::uint8_t vb __attribute__((vector_size(16)));
  typedef std::int16_t v16 __attribute__((vector_size(16)));
  typedef std::uint8_t four_bytes __attribute__((vector_size(4)));
  typedef std::uint16_t four_u16 __attribute__((vector_size(8)));

  template <class T>
  static T load_as(const void* from) {
    T out;
    std::memcpy(&out, from, sizeof out);
    return out;
  }

  static vf zero() { return vf{}; }
  static vf load(const float* from) { return load_as<vf>(from); }
  static void store(float* to, vf v) { std::memcpy(to, &v, sizeof v); }
  static vf broadcast(const float* from) { return vf{} + *from; }
  static vf add(vf a, vf b) { return a + b; }
  static vf mul(vf a, vf b) { return a * b; }
  static vf fma(vf a, vf b, vf c) { return a * b + c; } // two roundings: a fused one is slow where there is no instruction for it
  static vf negate(vf v) { return -v; }
  static vf to_float(vi v) { return __builtin_convertvector(v, vf); }

  // As half_to_float, lane by lane.
  static vf load_half(const unsigned char* from) {
    const vu half = __builtin_convertvector(load_as<four_u16>(from), vu);
    const vf finite = (vf)((half & 0x7fffU) << 13) * 0x1p112F;
    const vu special = (vu)((half & 0x7c00U) == 0x7c00U) & 0x7f800000U;
    return (vf)((vu)finite | special | (half & 0x8000U) << 16);
  }
  static vf load_u8(const unsigned char* from) { return __builtin_convertvector(load_as<four_bytes>(from), vf); }
  static vf load_i8(const unsigned char* from) {
    const vi bytes = __builtin_convertvector(load_as<four_bytes>(from), vi);
    return to_float((bytes ^ 0x80) - 0x80);
  }
  template <dtype Type>
  static vf load_plain(const unsigned char* from) {
    if constexpr (Type == dtype::f32)
      return load_as<vf>(from);
    else if constexpr (Type == dtype::f16)
      return load_half(from);
    else
      return (vf)(__builtin_convertvector(load_as<four_u16>(from), vu) << 16);
  }

  static vb load_bytes(const unsigned char* from) { return load_as<vb>(from); }
  static vb low_halves(vb v) { return v & 15; }
  static vb high_halves(vb v) { return v >> 4; }
  template <int Shift, int Mask>
  static vb add_high(vb low, vb high) {
    constexpr auto mask = static_cast<std::uint8_t>(Mask);
    if constexpr (Shift >= 0)
      return low | ((high << Shift) & mask);
    else
      return low | ((high >> -Shift) & mask);
  }

  static vi zero_int() { return vi{}; }
  template <int Log2>
  static vi scaled_int(const unsigned char* from) {
    return vi{} + load_as<std::int32_t>(from) * (1 << Log2);
  }
  static vi max_int(vi a, vi b) { return a > b ? a : b; }
  static vi magnitude_bits(vf v) { return (vi)v & 0x7fffffff; }
  static vi round_to_int(vf v) { return (vi)(v + 0x1.8p23F) - 0x4b400000; } // ties to even, for |v| < 2^22: the sum's low mantissa bits
  static std::int32_t horizontal_max(vi v) {
    std::int32_t most = v[0];
    for (int i = 1; i < width; ++i) most = v[i] > most ? v[i] : most;
    return most;
  }
  static std::int32_t sum_of_16(const vi* v) {
    const vi four = (v[0] + v[1]) + (v[2] + v[3]);
    return four[0] + four[1] + four[2] + four[3];
  }
  static void store_as_bytes(unsigned char* to, vi v) {
    const four_bytes bytes = __builtin_convertvector(v, four_bytes);
    std::memcpy(to, &bytes, sizeof bytes);
  }
  static float round_to_half(float v) { return half_to_float(float_to_half(v)); }

  // Even and odd bytes are multiplied in 16 bits, where two products of at most 128 * 127 still fit.
  template <int Bits>
  struct dot {
    vi sum;
    void start(vi first) { sum = first; }
    template <int K>
    void add(vb weights, const unsigned char* activations) {
      const v16 x = (v16)(vi{} + load_as<std::int32_t>(activations));
      const v16 w = (v16)weights;
      const v16 products = ((w << 8) >> 8) * ((x << 8) >> 8) + (w >> 8) * (x >> 8);
      sum += (((vi)products << 16) >> 16) + ((vi)products >> 16);
    }
    vi finish() const { return sum; }
  };
};

} // namespace

const kernel_set* portable_kernels() {
  static const kernel_set set = make_kernel_set<portable>("portable");
  return &set;
}

} // namespace troupe::cpu::detail
