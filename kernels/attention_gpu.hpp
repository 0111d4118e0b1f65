// Attention of decode rows over the paged KV cache on the GPU. The cache lies as device/kv_layout.hpp says, as on the CPU.
#pragma once

#include <cstdint>

#include "device/cuda/handles.hpp"
#include "kernels/linear_gpu.hpp"

namespace troupe::gpu {

// A row attends to positions max(0, p - window + 1) .. p of its sequence, p its own, which must be in the cache already.
struct decode_attention_args {
  const void* query = nullptr; // [rows][heads * head_dim], of the cache's type
  std::int64_t query_stride = 0;
  void* output = nullptr; // [rows][heads * head_dim], likewise
  std::int64_t output_stride = 0;
  std::int32_t rows = 0;
  std::int32_t heads = 0; // a multiple of the KV heads; neighbours share one
  float scale = 1;
  std::int32_t window = 0; // 0: everything
  row_places places;
  kv_layer_view kv; // bf16 or f16; block_size a multiple of 16, head_dim 64 or 128
  std::int32_t splits =
      1; // shares of a row's positions that are worked on side by side: 1, 2, 4, 8 or 16; changes the rounding, not the meaning
  bool overlaps = false; // as in linear_args
  // How many of a row's last positions, its own included, may be written by the previous kernel or the one before it. Everything older, and
  // `places`, lies there before those let this one start (at a chain's beginning: linear_args::holds_next), and is read before the previous
  // one is done. 0: all may be; nothing is read early.
  std::int32_t unsettled = 0;
  std::int32_t longest =
      0; // positions of the longest row that may come, 0: not known. Short shares leave room for the kernels before and behind
};

// Splits that give every multiprocessor work without making shares tiny, for rows of at most `longest` positions.
std::int32_t decode_attention_splits(std::int32_t rows, std::int32_t heads, std::int32_t kv_heads, std::int32_t longest);

void decode_attention(cuda::stream_handle on, const decode_attention_args& args);

} // namespace troupe::gpu
