// Attention over the paged KV cache without any trick: the other kernels' oracle, and what heads of unusual sizes take.
#pragma once

#include <cstdint>

#include "device/cuda/handles.hpp"
#include "kernels/linear_gpu.hpp"

namespace troupe::gpu {

// A row attends to positions max(0, p - window + 1) .. p of its sequence, p its own; all of them must be in the cache already.
// f32 scores, weights and sums; positions in order.
struct plain_attention_args {
  const void* query = nullptr; // [rows][heads * head_dim], of the cache's type
  std::int64_t query_stride = 0;
  void* output = nullptr; // [rows][heads * head_dim], likewise
  std::int64_t output_stride = 0;
  std::int32_t rows = 0;
  std::int32_t heads = 0; // a multiple of the KV heads; neighbours share one
  float scale = 1;
  std::int32_t window = 0; // 0: everything
  row_places places;
  const std::int32_t* tables = nullptr; // [rows] or null: row r's table is row tables_r of places.block_tables, not row r
  kv_layer_view kv;                     // bf16 or f16; head_dim at most 256
};

void plain_attention(cuda::stream_handle on, const plain_attention_args& args);

} // namespace troupe::gpu
