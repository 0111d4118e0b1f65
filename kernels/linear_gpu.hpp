// y = x W^T for up to 16 rows on the GPU: W streams through once, in the order in which warps read it, and what stands before and behind
// the product in a layer is done on the way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/dtype.hpp"
#include "device/cuda/handles.hpp"
#include "device/kv_layout.hpp"

namespace troupe::gpu {

// Neighbouring rows of W that are packed alike. A tile has 16 rows in two halves of 8; row i of the second half lies `pair_distance` behind
// row i of the first, so that an epilogue has both in one thread: 8 for rows that stand for themselves, the number of gates for [gates;
// ups], half a head for what rotates.
struct row_segment {
  std::int64_t rows = 0;
  std::int64_t pair_distance = 8; // a multiple of 8; `rows` is a multiple of twice it, unless it is 8 in the last segment
};

// Bytes of a packed matrix: tiles of 16 x 32 elements, filled up with zeros.
std::size_t packed_bytes(std::int64_t rows, std::int64_t columns);

// Packs row-major `weight` [rows][columns] (bf16 or f16) into `packed`; at most three segments, which cover its rows in order.
void pack_weight(cuda::stream_handle on, dtype type, const void* weight, std::int64_t columns, std::span<const row_segment> segments,
                 void* packed);

// What rotary embedding and the KV cache need to know of each row. Device memory.
struct row_places {
  const std::int32_t* positions = nullptr;    // [rows]
  const std::int32_t* block_tables = nullptr; // [rows][table_stride], up to the block of the row's position
  std::int64_t table_stride = 0;
};

// cos and sin by [position][head_dim / 2], f32, as kernels/rope.hpp makes them; pairs are halves of a head.
struct rotary {
  const float* cos = nullptr;
  const float* sin = nullptr;
};

struct linear_args {
  dtype type = dtype::bf16;          // of x, W, y and all vectors
  const void* packed = nullptr;      // W
  std::int64_t out_rows = 0;         // rows of W
  std::int64_t columns = 0;          // a multiple of 8
  const void* x = nullptr;           // [rows][columns]
  std::int64_t x_stride = 0;         // elements from row to row, a multiple of 8
  std::int32_t rows = 0;             // 1 .. 16
  const void* norm_weight = nullptr; // [columns]: x becomes rms_norm(x) first; null: x is taken as it is
  float epsilon = 0;
  const void* bias = nullptr; // [out_rows] or null
  void* y = nullptr;
  std::int64_t y_stride = 0;
  bool overlaps = false; // launched with programmatic dependent launch: W must not be what the previous kernel writes
};

// y [rows][out_rows] = x W^T + bias. W packed with pair_distance 8.
void linear(cuda::stream_handle on, const linear_args& args);
// The same with y in f32, for logits.
void linear_to_f32(cuda::stream_handle on, const linear_args& args);
// y = residual + x W^T + bias; `residual` has y's shape and stride and may be y.
void linear_residual(cuda::stream_handle on, const linear_args& args, const void* residual);
// y [rows][out_rows / 2] = silu(gates) * ups. W = [gates; ups] packed with pair_distance out_rows / 2; no bias.
void linear_swiglu(cuda::stream_handle on, const linear_args& args);

struct qkv_args {
  std::int32_t heads = 0; // of queries; kv.layout has the others
  row_places places;
  rotary table;
  kv_layer_view kv; // of the same element type
};
// W = [queries; keys; values] by heads: queries and keys rotate, y [rows][heads * head_dim] gets the queries, the cache keys and values.
// Segments: heads + kv_heads times head_dim rows with pair_distance head_dim / 2, then the values. head_dim is a multiple of 16.
void linear_qkv(cuda::stream_handle on, const linear_args& args, const qkv_args& qkv);

} // namespace troupe::gpu
