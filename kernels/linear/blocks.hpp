// Stored weights, block by block: GGML's quantised layouts (ggml-common.h) and plain floats, taken apart into plain numbers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.hpp"

namespace troupe::cpu::detail {

// 32 consecutive elements of a quantised row: element i is
//   scale * factor[i / 16] * (quants[i] - zero) + minimum * minimum_factor.
// The floats stay binary16 bits as stored. Types without a second level have factors 1; types without a minimum have minimum 0.
struct block32 {
  std::uint8_t quants[32]; // below 2^bits; Q8_0: the signed byte + 128
  std::uint16_t scale;
  std::uint16_t minimum;
  std::int8_t factor[2];       // K types: 6 bits, or Q6_K's signed 8 bits, one per 16 elements
  std::uint8_t minimum_factor; // K types; the stored minimum is subtracted
};

// What is the same for every block of a type.
struct block_shape {
  int bits; // of a quant: 4, 5, 6 or 8
  int zero; // subtracted from a quant
  bool has_minimum;
  int minimum_sign;  // +1: added, -1: subtracted (K types)
  bool super_blocks; // 256 elements share scale and minimum, with factors per 32 (or 16) elements
};

constexpr block_shape shape_of(dtype type) {
  switch (type) {
    case dtype::q4_0:
      return {4, 8, false, 1, false};
    case dtype::q4_1:
      return {4, 0, true, 1, false};
    case dtype::q5_0:
      return {5, 16, false, 1, false};
    case dtype::q5_1:
      return {5, 0, true, 1, false};
    case dtype::q8_0:
      return {8, 128, false, 1, false};
    case dtype::q4_k:
      return {4, 0, true, -1, true};
    case dtype::q5_k:
      return {5, 0, true, -1, true};
    case dtype::q6_k:
      return {6, 32, false, 1, true};
    default:
      return {};
  }
}

// Elements [32 * index, 32 * index + 32) of the row that starts at `row`. `type` is one of the quantised ones.
block32 read_block(dtype type, const std::byte* row, std::int64_t index);

// `count` elements of an F32, F16 or BF16 row, widened.
void read_floats(dtype type, const std::byte* row, std::int64_t first, std::int64_t count, float* out);

} // namespace troupe::cpu::detail
