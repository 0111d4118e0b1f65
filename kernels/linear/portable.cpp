// The kernels in plain C++: 16 lanes as arrays, for the compiler to turn into whatever the target has.
#include <algorithm>
#include <cstring>

#include "kernels/half.hpp"
#include "kernels/linear/tile.hpp"

namespace troupe::cpu::detail {
namespace {

struct portable {
  static constexpr int width = 16;
  static constexpr int tile_rows = 4;
  static constexpr bool signed_bytes = true;
  struct vf {
    float lane[width];
  };
  struct vi {
    std::int32_t lane[width];
  };
  struct vb {
    std::uint8_t byte[4 * width];
  };

  template <class Out, class F>
  static Out each(F&& f) {
    Out out;
    for (int i = 0; i < width; ++i) out.lane[i] = f(i);
    return out;
  }

  static vf zero() { return vf{}; }
  static vf load(const float* from) {
    vf out;
    std::memcpy(&out, from, sizeof out);
    return out;
  }
  static void store(float* to, const vf& v) { std::memcpy(to, &v, sizeof v); }
  static vf broadcast(const float* from) {
    return each<vf>([x = *from](int) { return x; });
  }
  static vf add(const vf& a, const vf& b) {
    return each<vf>([&](int i) { return a.lane[i] + b.lane[i]; });
  }
  static vf mul(const vf& a, const vf& b) {
    return each<vf>([&](int i) { return a.lane[i] * b.lane[i]; });
  }
  static vf fma(const vf& a, const vf& b, const vf& c) { // two roundings: a fused one is slow where there is no instruction for it
    return each<vf>([&](int i) { return a.lane[i] * b.lane[i] + c.lane[i]; });
  }
  static vf negate(const vf& v) {
    return each<vf>([&](int i) { return -v.lane[i]; });
  }
  static vf to_float(const vi& v) {
    return each<vf>([&](int i) { return static_cast<float>(v.lane[i]); });
  }

  static std::uint16_t u16(const unsigned char* from, int index) {
    std::uint16_t value;
    std::memcpy(&value, from + 2 * index, sizeof value);
    return value;
  }
  static vf load_half(const unsigned char* from) {
    return each<vf>([&](int i) { return half_to_float(u16(from, i)); });
  }
  static vf load_u8(const unsigned char* from) {
    return each<vf>([&](int i) { return static_cast<float>(from[i]); });
  }
  static vf load_i8(const unsigned char* from) {
    return each<vf>([&](int i) { return static_cast<float>(static_cast<std::int8_t>(from[i])); });
  }
  template <dtype Type>
  static vf load_plain(const unsigned char* from) {
    if constexpr (Type == dtype::f16) return load_half(from);
    if constexpr (Type == dtype::bf16) return each<vf>([&](int i) { return bfloat16_to_float(u16(from, i)); });
    vf out;
    std::memcpy(&out, from, sizeof out);
    return out;
  }

  static vb load_bytes(const unsigned char* from) {
    vb out;
    std::memcpy(&out, from, sizeof out);
    return out;
  }
  static vb low_halves(vb v) {
    for (std::uint8_t& byte : v.byte) byte &= 15U;
    return v;
  }
  static vb high_halves(vb v) {
    for (std::uint8_t& byte : v.byte) byte = static_cast<std::uint8_t>(byte >> 4);
    return v;
  }
  template <int Shift, int Mask>
  static vb add_high(vb low, const vb& high) {
    for (int i = 0; i < 4 * width; ++i) {
      const int moved = Shift >= 0 ? high.byte[i] << (Shift >= 0 ? Shift : 0) : high.byte[i] >> (Shift < 0 ? -Shift : 0);
      low.byte[i] = static_cast<std::uint8_t>(low.byte[i] | (moved & Mask));
    }
    return low;
  }

  static vi zero_int() { return vi{}; }
  template <int Log2>
  static vi scaled_int(const unsigned char* from) {
    std::int32_t value;
    std::memcpy(&value, from, sizeof value);
    return each<vi>([value](int) { return value * (1 << Log2); });
  }
  static vi add_int(const vi& a, const vi& b) {
    return each<vi>([&](int i) { return a.lane[i] + b.lane[i]; });
  }
  static vi max_int(const vi& a, const vi& b) {
    return each<vi>([&](int i) { return std::max(a.lane[i], b.lane[i]); });
  }
  static vi magnitude_bits(const vf& v) {
    return each<vi>([&](int i) { return std::bit_cast<std::int32_t>(v.lane[i]) & 0x7fffffff; });
  }
  static vi round_to_int(const vf& v) { // ties to even, for |v| < 2^22: the sum's low mantissa bits are the integer
    return each<vi>([&](int i) { return std::bit_cast<std::int32_t>(v.lane[i] + 0x1.8p23F) - 0x4b400000; });
  }
  static std::int32_t horizontal_sum(const vi& v) {
    std::int32_t sum = 0;
    for (const std::int32_t lane : v.lane) sum += lane;
    return sum;
  }
  static std::int32_t horizontal_max(const vi& v) { return *std::max_element(v.lane, v.lane + width); }
  static void store_as_bytes(unsigned char* to, const vi& v) {
    for (int i = 0; i < width; ++i) to[i] = static_cast<unsigned char>(v.lane[i]);
  }
  static float round_to_half(float v) { return half_to_float(float_to_half(v)); }

  template <int Bits>
  struct dot {
    vi sum;
    void start(const vi& first) { sum = first; }
    template <int K>
    void add(const vb& weights, const unsigned char* activations) {
      std::int8_t x[4];
      std::memcpy(x, activations, sizeof x);
      for (int i = 0; i < width; ++i) {
        for (int j = 0; j < 4; ++j) sum.lane[i] += static_cast<std::int8_t>(weights.byte[4 * i + j]) * x[j];
      }
    }
    const vi& finish() const { return sum; }
  };
};

} // namespace

const kernel_set* portable_kernels() {
  static const kernel_set set = make_kernel_set<portable>("portable");
  return &set;
}

} // namespace troupe::cpu::detail
