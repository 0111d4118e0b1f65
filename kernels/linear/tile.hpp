// The kernels, written once over a vector type V: an instruction set's file defines V, includes this and calls make_kernel_set<V>.
// All names have internal linkage (see layout.hpp for why). One output's additions have one order, whatever the tile's size.
//
// V has: width (floats, 4, 8 or 16); types vf (floats), vi (int32), vb (bytes, 4 per lane) and the functions used below;
// dot<Bits>: integer sums of 4 products per lane: start(first), add<K>(quants, activations), finish();
// signed_bytes: dot<8> takes signed quants (so zero is 0), else quants + 128.
#pragma once

#include <cstring>
#include <utility>

#include "kernels/linear/blocks.hpp"
#include "kernels/linear/layout.hpp"

#define TROUPE_INLINE [[gnu::always_inline]] inline

namespace troupe::cpu::detail {
namespace {

constexpr int log2_of(int value) { return value <= 1 ? 0 : 1 + log2_of(value / 2); }

template <class V>
TROUPE_INLINE void store_outputs(const tile_job& job, int row, int lane, typename V::vf value) {
  if (job.bias != nullptr) value = V::add(value, V::load(job.bias + lane));
  float* const y = job.y + row * job.y_stride + lane;
  if (lane + V::width <= job.outputs) {
    V::store(y, job.accumulate ? V::add(V::load(y), value) : value);
    return;
  }
  float lanes[V::width];
  V::store(lanes, value);
  for (int i = 0; lane + i < job.outputs; ++i) y[i] = job.accumulate ? y[i] + lanes[i] : lanes[i];
}

// Vector K of a 32-column group, taken from its packed form. `half`: byte offset of the lanes within a 64-byte vector.
template <class V, int Bits, int K>
TROUPE_INLINE typename V::vb unpack(const unsigned char* group, int half) {
  if constexpr (Bits == 8) {
    const auto bytes = V::load_bytes(group + K * 64 + half);
    if constexpr (V::signed_bytes)
      return bytes;
    else
      return V::flip_sign_bits(bytes);
  } else {
    const auto packed = V::load_bytes(group + K % 4 * 64 + half);
    const auto low = K < 4 ? V::low_halves(packed) : V::high_halves(packed);
    if constexpr (Bits == 5)
      return V::template add_high<4 - K, 0x10>(low, V::load_bytes(group + 256 + half));
    else if constexpr (Bits == 6)
      return V::template add_high<4 - K % 4 * 2, 0x30>(low, V::load_bytes(group + 256 + K / 4 * 64 + half));
    else
      return low;
  }
}

// Vectors First + Ks.. of a group for every row of the tile.
template <class V, int Bits, int R, int First, int... Ks>
TROUPE_INLINE void dot_group(typename V::template dot<Bits>* sums, const unsigned char* group, int half, const unsigned char* activations,
                             std::integer_sequence<int, Ks...>) {
  const auto step = [&]<int K>() __attribute__((always_inline)) {
    const auto weights = unpack<V, Bits, K>(group, half);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sums[r].template add<K - First>(weights, activations + r * 32 + K * 4);
  };
  (step.template operator()<First + Ks>(), ...);
}

// Lanes [lane, lane + width) of the panel's scale and minimum for one group of 32 (or, Q6_K, 16) columns.
template <class V>
struct group_scales {
  typename V::vf scale;
  typename V::vf minimum;
};

template <class V, dtype Type>
TROUPE_INLINE group_scales<V> load_scales(const unsigned char* panel, std::int64_t block, int lane, int part) {
  constexpr block_shape shape = shape_of(Type);
  constexpr int stride = packed_scale_bytes(shape.super_blocks, shape.has_minimum);
  if constexpr (!shape.super_blocks) {
    const unsigned char* const from = panel + block * stride + 2 * lane;
    if constexpr (shape.has_minimum)
      return {V::load_half(from), V::load_half(from + 32)};
    else
      return {V::load_half(from), V::zero()};
  } else {
    const unsigned char* const super = panel + block / 8 * stride + 2 * lane;
    const unsigned char* const factors = panel + block / 8 * stride + (shape.has_minimum ? 64 : 32) + block % 8 * 32 + lane;
    if constexpr (shape.has_minimum) {
      const auto minimum = V::mul(V::load_half(super + 32), V::load_u8(factors + 16));
      return {V::mul(V::load_half(super), V::load_u8(factors)), V::negate(minimum)};
    } else {
      return {V::mul(V::load_half(super), V::load_i8(factors + 16 * part)), V::zero()};
    }
  }
}

TROUPE_INLINE const float* as_floats(const unsigned char* from) { return reinterpret_cast<const float*>(from); }

// The hardware's own prefetching stops at the end of each page. One row at a time reads weights as fast as they come.
template <int Bytes>
TROUPE_INLINE void prefetch(const unsigned char* from) {
  constexpr int distance = 4096;
#pragma GCC unroll 8
  for (int i = 0; i < Bytes; i += 64) __builtin_prefetch(from + distance + i);
}

// Adds group columns [First * 4, (First + Count) * 4) of block `block` to every row's sum.
template <class V, dtype Type, int R, int First, int Count>
TROUPE_INLINE void add_group(const tile_job& job, std::int64_t block, int lane, typename V::vf* sums) {
  constexpr block_shape shape = shape_of(Type);
  constexpr int bits = shape.bits;
  constexpr int zero = bits == 8 && V::signed_bytes ? 0 : shape.zero;
  constexpr int group_bytes = packed_quant_bytes(bits);
  const unsigned char* const group = job.weights + block * group_bytes;
  const unsigned char* const tile = job.activations + block * (R * activation_bytes_per_row);
  const unsigned char* const minus_sums = tile + (Count == 8 ? R * 40 : R * 44 + First / 4 * R * 4);
  if constexpr (R == 1) prefetch<group_bytes * V::width / quant_panel_rows>(group);
  typename V::template dot<bits> dots[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    if constexpr (zero != 0)
      dots[r].start(V::template scaled_int<log2_of(zero)>(minus_sums + 4 * r));
    else
      dots[r].start(V::zero_int());
  }
  dot_group<V, bits, R, First>(dots, group, lane * 4, tile, std::make_integer_sequence<int, Count>{});
  const auto [scale, minimum] = load_scales<V, Type>(job.scales, block, lane, First / 4);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const auto both = V::mul(scale, V::broadcast(as_floats(tile + R * 32 + 4 * r)));
    sums[r] = V::fma(both, V::to_float(dots[r].finish()), sums[r]);
    if constexpr (shape.has_minimum) sums[r] = V::fma(minimum, V::broadcast(as_floats(tile + R * 36 + 4 * r)), sums[r]);
  }
}

template <class V, dtype Type, int R>
void quant_tile(const tile_job& job) {
  for (int lane = 0; lane < quant_panel_rows; lane += V::width) {
    typename V::vf sums[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sums[r] = V::zero();
    for (std::int64_t block = 0; block < job.columns / 32; ++block) {
      if constexpr (Type == dtype::q6_k) {
        add_group<V, Type, R, 0, 4>(job, block, lane, sums);
        add_group<V, Type, R, 4, 4>(job, block, lane, sums);
      } else {
        add_group<V, Type, R, 0, 8>(job, block, lane, sums);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) store_outputs<V>(job, r, lane, sums[r]);
  }
}

// Sums within 32 columns are added up first, then the sums of the parts: rounding errors grow with the parts, not with the columns.
template <class V, dtype Type, int R>
void plain_tile(const tile_job& job) {
  constexpr int vectors = 2;
  constexpr int element = Type == dtype::f32 ? 4 : 2;
  for (int lane = 0; lane < plain_panel_rows; lane += vectors * V::width) {
    typename V::vf sums[R][vectors];
    for (int r = 0; r < R; ++r) sums[r][0] = sums[r][1] = V::zero();
    for (std::int64_t first = 0; first < job.columns; first += 32) {
      const std::int64_t end = first + 32 < job.columns ? first + 32 : job.columns;
      typename V::vf part[R][vectors];
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) part[r][0] = part[r][1] = V::zero();
      for (std::int64_t c = first; c < end; ++c) {
        const unsigned char* const from = job.weights + (c * plain_panel_rows + lane) * element;
        if constexpr (R == 1) prefetch<vectors * V::width * element>(from);
        const auto a = V::template load_plain<Type>(from);
        const auto b = V::template load_plain<Type>(from + V::width * element);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          const auto x = V::broadcast(job.x + r * job.x_stride + c);
          part[r][0] = V::fma(a, x, part[r][0]);
          part[r][1] = V::fma(b, x, part[r][1]);
        }
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        sums[r][0] = V::add(sums[r][0], part[r][0]);
        sums[r][1] = V::add(sums[r][1], part[r][1]);
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int v = 0; v < vectors; ++v) store_outputs<V>(job, r, lane + v * V::width, sums[r][v]);
    }
  }
}

struct activation_scale {
  float d;       // what a quant is multiplied with
  float inverse; // what an activation is multiplied with
  float exact_d; // before rounding
  bool rounded;
};

// From the bits of the largest magnitude; NaN and infinities are the largest of all.
template <class V>
TROUPE_INLINE activation_scale scale_for(std::int32_t largest_bits, bool per_256) {
  if (largest_bits >= 0x7f800000) {
    const float nan = __builtin_nanf("");
    return {nan, 0.0F, nan, false};
  }
  float largest;
  std::memcpy(&largest, &largest_bits, sizeof largest);
  if (largest < 0x1p-100F) return {0.0F, 0.0F, 0.0F, false}; // 127 / largest could overflow
  const float inverse = 127.0F / largest;
  if (per_256) return {1.0F / inverse, inverse, 1.0F / inverse, false};
  // Rounded as GGML does, so that results agree with programs built on it, except where binary16 would overflow or its
  // subnormals would cost more than the quantisation itself.
  const float d = largest / 127.0F;
  const bool rounded = d >= 0x1p-17F && d <= 65504.0F;
  return {rounded ? V::round_to_half(d) : d, inverse, d, rounded};
}

template <class V>
TROUPE_INLINE void quantise_32(const float* x, const activation_scale& scale, std::int64_t row, std::int64_t rows, unsigned char* block) {
  constexpr int vectors = 32 / V::width;
  typename V::vi q[vectors];
  const auto inverse = V::broadcast(&scale.inverse);
#pragma GCC unroll 8
  for (int i = 0; i < vectors; ++i) {
    q[i] = V::round_to_int(V::mul(V::load(x + i * V::width), inverse));
    V::store_as_bytes(block + row * 32 + i * V::width, q[i]);
  }
  const std::int32_t first = V::sum_of_16(q);
  const std::int32_t second = V::sum_of_16(q + vectors / 2);
  const std::int32_t minus[3] = {-first - second, -first, -second};
  float s = scale.exact_d * static_cast<float>(first + second);
  if (scale.rounded && s <= 65504.0F && s >= -65504.0F) s = V::round_to_half(s);
  unsigned char* const floats = block + rows * 32 + row * 4;
  std::memcpy(floats, &scale.d, 4);
  std::memcpy(floats + rows * 4, &s, 4);
  std::memcpy(floats + rows * 8, &minus[0], 4);
  std::memcpy(floats + rows * 12, &minus[1], 4);
  std::memcpy(floats + rows * 16, &minus[2], 4);
}

// Where scale_for gave inverse = 0 the quants do not matter, but must be defined: NaN times 0 is no integer.
inline void zero_32(const activation_scale& scale, std::int64_t row, std::int64_t rows, unsigned char* block) {
  unsigned char* const floats = block + rows * 32 + row * 4;
  std::memset(block + row * 32, 0, 32);
  std::memcpy(floats, &scale.d, 4);
  std::memcpy(floats + rows * 4, &scale.d, 4);
  for (int i = 2; i < 5; ++i) std::memset(floats + rows * 4 * i, 0, 4);
}

template <class V>
void quantise_tile(const quantise_job& job) {
  const int group = job.per_256 ? 256 : 32;
  for (std::int64_t row = 0; row < job.rows; ++row) {
    const float* const x = job.x + row * job.x_stride;
    for (std::int64_t c = 0; c < job.columns; c += group) {
      auto largest = V::zero_int();
      for (int i = 0; i < group; i += V::width) largest = V::max_int(largest, V::magnitude_bits(V::load(x + c + i)));
      const activation_scale scale = scale_for<V>(V::horizontal_max(largest), job.per_256);
      for (int i = 0; i < group; i += 32) {
        unsigned char* const block = job.out + (c + i) / 32 * job.rows * activation_bytes_per_row;
        if (scale.inverse == 0.0F)
          zero_32(scale, row, job.rows, block);
        else
          quantise_32<V>(x + c + i, scale, row, job.rows, block);
      }
    }
  }
}

template <class V, dtype Type>
void add_kernels(kernel_set& set) {
  auto& row = set.tiles[static_cast<int>(Type)];
  if constexpr (is_quantised(Type)) {
    row[0] = quant_tile<V, Type, 1>;
    row[1] = quant_tile<V, Type, 2>;
    row[2] = quant_tile<V, Type, 4>;
    if constexpr (V::tile_rows == 8) row[3] = quant_tile<V, Type, 8>;
  } else {
    row[0] = plain_tile<V, Type, 1>;
    row[1] = plain_tile<V, Type, 2>;
    row[2] = plain_tile<V, Type, 4>;
    if constexpr (V::tile_rows == 8) row[3] = plain_tile<V, Type, 8>;
  }
}

template <class V>
kernel_set make_kernel_set(const char* name) {
  kernel_set set{name, V::tile_rows, quantise_tile<V>, {}};
  add_kernels<V, dtype::f32>(set);
  add_kernels<V, dtype::f16>(set);
  add_kernels<V, dtype::bf16>(set);
  add_kernels<V, dtype::q4_0>(set);
  add_kernels<V, dtype::q4_1>(set);
  add_kernels<V, dtype::q5_0>(set);
  add_kernels<V, dtype::q5_1>(set);
  add_kernels<V, dtype::q8_0>(set);
  add_kernels<V, dtype::q4_k>(set);
  add_kernels<V, dtype::q5_k>(set);
  add_kernels<V, dtype::q6_k>(set);
  return set;
}

} // namespace
} // namespace troupe::cpu::detail

#undef TROUPE_INLINE
