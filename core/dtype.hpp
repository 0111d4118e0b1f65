// Element types of stored tensors, and the sizes of their blocks.
// Quantised layouts are GGML's (ggml-common.h, MIT): 32 or 256 elements share scales.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace troupe {

enum class dtype : std::uint8_t {
  f32,
  f16,
  bf16,
  i8,
  i32,
  i64,
  u8, // plain; the integer kinds only ever hold markers and indices
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  q8_0, // 32 elements a block
  q4_k,
  q5_k,
  q6_k, // 256 elements a block
};

struct dtype_traits {
  std::string_view name;   // "F32", "Q4_1"
  std::size_t block_elems; // elements that share one block, 1 for plain types
  std::size_t block_bytes; // bytes of one block
};

constexpr dtype_traits traits(dtype type) {
  switch (type) {
    case dtype::f32:
      return {"F32", 1, 4};
    case dtype::f16:
      return {"F16", 1, 2};
    case dtype::bf16:
      return {"BF16", 1, 2};
    case dtype::i8:
      return {"I8", 1, 1};
    case dtype::i32:
      return {"I32", 1, 4};
    case dtype::i64:
      return {"I64", 1, 8};
    case dtype::u8:
      return {"U8", 1, 1};
    case dtype::q4_0:
      return {"Q4_0", 32, 18};
    case dtype::q4_1:
      return {"Q4_1", 32, 20};
    case dtype::q5_0:
      return {"Q5_0", 32, 22};
    case dtype::q5_1:
      return {"Q5_1", 32, 24};
    case dtype::q8_0:
      return {"Q8_0", 32, 34};
    case dtype::q4_k:
      return {"Q4_K", 256, 144};
    case dtype::q5_k:
      return {"Q5_K", 256, 176};
    case dtype::q6_k:
      return {"Q6_K", 256, 210};
  }
  return {"?", 1, 0};
}

constexpr bool is_quantised(dtype type) { return traits(type).block_elems > 1; }

// Bytes of one row of `columns` elements; `columns` must be a multiple of block_elems.
constexpr std::size_t row_bytes(dtype type, std::size_t columns) { return columns / traits(type).block_elems * traits(type).block_bytes; }

} // namespace troupe
