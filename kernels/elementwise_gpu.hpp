// Ops that touch each element once, on the GPU: the unfused path, and what many rows (prefill) use. Pointers are device memory; elements
// are bf16 or f16 with f32 arithmetic; strides count elements.
#pragma once

#include <cstdint>

#include "core/ids.hpp"
#include "kernels/linear_gpu.hpp"

namespace troupe::gpu {

// y_i = table row tokens_i. Also gathers rows: then the table is a matrix of hidden states and the tokens are row numbers.
struct embedding_args {
  dtype type = dtype::bf16;
  const void* table = nullptr;      // [vocab][columns]
  const token_id* tokens = nullptr; // [rows], each below vocab
  std::int32_t rows = 0;
  std::int64_t columns = 0;
  void* y = nullptr; // [rows][columns]
  std::int64_t y_stride = 0;
  bool overlaps = false; // as in linear_args, in all of these
};
void embedding(cuda::stream_handle on, const embedding_args& args);

// y = norm(x + residual) * weight (+ bias); the sum, rounded, goes to `sum` when that is given (it may be x or residual).
struct norm_args {
  dtype type = dtype::bf16;
  const void* x = nullptr;        // [rows][columns]
  const void* residual = nullptr; // or null
  void* sum = nullptr;            // or null
  void* y = nullptr;
  std::int64_t stride = 0; // of x, residual and sum
  std::int64_t y_stride = 0;
  std::int32_t rows = 0;
  std::int64_t columns = 0;
  const void* weight = nullptr; // [columns]
  float epsilon = 0;
  bool overlaps = false;
  const void* bias = nullptr; // [columns] or null; layer_norm alone
  const std::int32_t* from =
      nullptr; // [rows] or null: y_i is of row from_i of x (the sampled rows before the head); without residual and sum
};
using rms_norm_args = norm_args;
// arXiv 1910.07467: norm(x) = x / sqrt(mean(x^2) + epsilon).
void rms_norm(cuda::stream_handle on, const norm_args& args);
// arXiv 1607.06450: norm(x) = (x - mean(x)) / sqrt(variance(x) + epsilon).
void layer_norm(cuda::stream_handle on, const norm_args& args);

// Turns queries in place and writes turned keys and values of [rows][(heads + 2 kv_heads) * head_dim] to the cache. With norms, each head's
// query and key is normalised (RMSNorm over head_dim) before it turns.
struct rope_kv_args {
  void* qkv = nullptr; // of the cache's type
  std::int64_t stride = 0;
  std::int32_t rows = 0;
  std::int32_t heads = 0; // of queries
  row_places places;
  rotary table;
  kv_layer_view kv; // head_dim is even, at most 256
  bool overlaps = false;
  bool among_fused = false;             // between linear() and decode_attention(): takes their split of memory (launch_shape)
  const std::int32_t* tables = nullptr; // [rows] or null: row r's table is row tables_r of places.block_tables, not row r
  const void* query_norm = nullptr;     // [head_dim] or null
  const void* key_norm = nullptr;       // likewise
  float epsilon = 0;
};
void rope_and_kv_write(cuda::stream_handle on, const rope_kv_args& args);

// y = silu(gate) * up.
struct swiglu_args {
  dtype type = dtype::bf16;
  const void* gate_up = nullptr; // [rows][2 * columns]: the gates, then the ups
  std::int64_t gate_up_stride = 0;
  void* y = nullptr; // [rows][columns]
  std::int64_t y_stride = 0;
  std::int32_t rows = 0;
  std::int64_t columns = 0;
  bool overlaps = false;
};
void swiglu(cuda::stream_handle on, const swiglu_args& args);

// What was gathered part by part becomes whole rows: y_r = row r of part 0, then of part 1, and so on.
struct join_parts_args {
  const float* parts = nullptr; // [part_count][rows][columns]
  std::int32_t part_count = 1;
  std::int32_t rows = 0;
  std::int64_t columns = 0; // a multiple of 4
  float* y = nullptr;       // [rows][part_count * columns], on 16 bytes as `parts`
  bool overlaps = false;
};
void join_parts(cuda::stream_handle on, const join_parts_args& args);

// y_i = parts_0i + parts_1i + .., added up in this order in f32 and rounded once.
struct sum_parts_args {
  dtype type = dtype::bf16;
  const void* parts = nullptr; // [parts_count][count]
  std::int32_t parts_count = 0;
  std::int64_t count = 0;
  void* y = nullptr; // [count], outside the parts
  bool overlaps = false;
};
void sum_parts(cuda::stream_handle on, const sum_parts_args& args);

} // namespace troupe::gpu
