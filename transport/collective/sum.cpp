#include "transport/collective/sum.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "core/half.hpp"

namespace troupe {
namespace {

constexpr std::size_t kSliceElements = 64; // slices begin at multiples of this
constexpr std::size_t kTile = 1024;        // elements whose sums stay in the nearest cache

struct as_f32 {
  using element = float;
  static float widen(float value) { return value; }
  static float narrow(float value) { return value; }
};

struct as_f16 {
  using element = std::uint16_t;
  static float widen(element value) { return half_to_float(value); }
  static element narrow(float value) { return float_to_half(value); }
};

struct as_bf16 {
  using element = std::uint16_t;
  static float widen(element value) { return bfloat16_to_float(value); }
  static element narrow(float value) { return float_to_bfloat16(value); }
};

// Buffers may be unaligned pieces of others, so elements are copied in and out.
template <class Format>
void sum(std::span<const std::byte* const> inputs, std::byte* out, std::size_t count) {
  using element = typename Format::element;
  std::array<float, kTile> sums;
  std::array<element, kTile> tile;
  for (std::size_t begin = 0; begin < count; begin += kTile) {
    const std::size_t n = std::min(kTile, count - begin);
    for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
      std::memcpy(tile.data(), inputs[rank] + begin * sizeof(element), n * sizeof(element));
      if (rank == 0) {
        for (std::size_t i = 0; i < n; ++i) sums[i] = Format::widen(tile[i]);
      } else {
        for (std::size_t i = 0; i < n; ++i) sums[i] += Format::widen(tile[i]);
      }
    }
    for (std::size_t i = 0; i < n; ++i) tile[i] = Format::narrow(sums[i]);
    std::memcpy(out + begin * sizeof(element), tile.data(), n * sizeof(element));
  }
}

} // namespace

void sum_in_rank_order(dtype type, std::span<const std::byte* const> inputs, std::byte* out, std::size_t count) {
  if (type == dtype::f32) return sum<as_f32>(inputs, out, count);
  if (type == dtype::f16) return sum<as_f16>(inputs, out, count);
  sum<as_bf16>(inputs, out, count);
}

std::size_t slice_begin(std::size_t count, std::size_t slice, std::size_t slices) {
  return slice == slices ? count : count * slice / slices / kSliceElements * kSliceElements;
}

} // namespace troupe
