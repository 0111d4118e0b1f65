// y = x W^T for 1 to 128 rows on the GPU. W lies row-major, as cuBLASLt reads it too, and streams through once; what stands before and
// behind the product in a layer is done on the way.
//
// For 1 or 2 rows a kernel takes W through registers, up to 8 one through shared memory, both for the matrix instruction of a warp, up to
// 32 one in tiles for that of a warp group, above it one in larger tiles. A row's result is bit for bit the same whatever the other rows of
// the call are, as long as the number of rows stays within 1-2, 3-8, 9-16, 17-32 or 33-128; with batch_invariant, whatever their number is.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.hpp"
#include "device/cuda/handles.hpp"
#include "device/kv_layout.hpp"

namespace troupe::gpu {

// What rotary embedding and the KV cache need to know of each row. Device memory.
struct row_places {
  const std::int32_t* positions = nullptr;    // [rows]
  const std::int32_t* block_tables = nullptr; // [rows][table_stride], up to the block of the row's position
  std::int64_t table_stride = 0;
};

// cos and sin by [position][head_dim / 2], f32, on 8 bytes, as kernels/rope.hpp makes them; pairs are halves of a head.
struct rotary {
  const float* cos = nullptr;
  const float* sin = nullptr;
};

// All matrices row-major, in device memory; `weight` and `x` on 16 bytes.
struct linear_args {
  dtype type = dtype::bf16;          // of x, W, y and all vectors
  const void* weight = nullptr;      // W [out_rows][columns]
  std::int64_t out_rows = 0;         // rows of W
  std::int64_t columns = 0;          // a multiple of 8
  const void* x = nullptr;           // [rows][columns]
  std::int64_t x_stride = 0;         // elements from row to row, a multiple of 8
  std::int32_t rows = 0;             // 1 .. 128, unless batch_invariant
  const void* norm_weight = nullptr; // [columns], on 16 bytes: x becomes rms_norm(x) first; null: x is taken as it is
  float epsilon = 0;
  const void* bias = nullptr; // [out_rows] or null
  void* y = nullptr;
  std::int64_t y_stride = 0;
  void* workspace = nullptr; // linear_workspace() bytes, on 16 bytes, for more than 8 rows and a norm; calls in one stream may share it
  bool overlaps = false; // launched with programmatic dependent launch: W, norm_weight and bias must not be what the previous kernel writes
  // With `overlaps`: the next kernel of the chain starts only when the previous one is done, so that it need not wait for what that one
  // wrote. Paths that cannot do so do not overlap.
  bool holds_next = false;
  // Any number of rows, all by the path of the larger tiles, without a norm: a row's bits depend on its own x, W's shape and the device
  // alone.
  bool batch_invariant = false;
};

// Bytes that products of at most `rows` rows and `columns` columns need; 0 up to 8 rows.
std::size_t linear_workspace(std::int32_t rows, std::int64_t columns);

// y [rows][out_rows] = x W^T + bias.
void linear(cuda::stream_handle on, const linear_args& args);
// The same with y in f32, for logits.
void linear_to_f32(cuda::stream_handle on, const linear_args& args);
// The best of some of a row's logits, the lowest id among equals.
struct logit_top {
  float logit = 0;
  std::int32_t id = 0; // below 0: one of them is NaN or +inf
};
inline constexpr std::int32_t most_logit_tops = 4096; // of a row
// The same, and `tops` [rows][most_logit_tops] for sample(): of the first `vocab` outputs. Returns how many a row has; 0: none, as more
// than 2 rows leave none. No bias.
std::int32_t linear_to_logits(cuda::stream_handle on, const linear_args& args, std::int32_t vocab, logit_top* tops);
// y = residual + x W^T + bias; `residual` has y's shape and stride and may be y.
void linear_residual(cuda::stream_handle on, const linear_args& args, const void* residual);
// y [rows][out_rows / 2] = silu(gates) * ups. W = [gates; ups], each a multiple of 8 rows; no bias.
void linear_swiglu(cuda::stream_handle on, const linear_args& args);

struct qkv_args {
  std::int32_t heads = 0; // of queries; kv.layout has the others
  row_places places;
  rotary table;
  kv_layer_view kv;                     // of the same element type
  const std::int32_t* tables = nullptr; // [rows] or null: row r's table is row tables_r of places.block_tables, not row r
};
// W = [queries; keys; values] by heads: queries and keys rotate, y [rows][heads * head_dim] gets the queries, the cache keys and values.
// head_dim is a multiple of 16.
void linear_qkv(cuda::stream_handle on, const linear_args& args, const qkv_args& qkv);

} // namespace troupe::gpu
