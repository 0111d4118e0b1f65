// Attention of many rows over the paged KV cache on the GPU: chunks of prompts, several sequences in one launch, down to a chunk of 1 row.
// The cache lies as device/kv_layout.hpp says. Keys and values of the rows themselves are written first (rope_and_kv_write).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/cuda/handles.hpp"
#include "device/kv_layout.hpp"

namespace troupe::gpu {

// Neighbouring rows of a step that are neighbouring positions of one sequence.
struct prefill_span {
  std::int32_t first_row = 0;
  std::int32_t rows = 0;
  std::int32_t first_position = 0;
  std::int32_t table = 0; // row of block_tables that is the sequence's
};

// What a block of the GPU takes at once: some rows of one span.
struct prefill_tile {
  std::int32_t first_row = 0;
  std::int32_t rows = 0; // 0: nothing, so that a captured launch may have more tiles than a step needs
  std::int32_t first_position = 0;
  std::int32_t end_position = 0; // behind the span's last position: what the cache holds from there on is not looked at
  std::int32_t table = 0;
};

// Rows of a tile at most: a tile takes all heads that share a KV head.
std::int32_t prefill_tile_rows(std::int32_t heads, std::int32_t kv_heads);
// Fills `tiles` so that they cover every row once, those with the most to read first.
void split_prefill(std::span<const prefill_span> spans, std::int32_t heads, std::int32_t kv_heads, std::int32_t window,
                   std::vector<prefill_tile>& tiles);

// Positions cut at fixed places into shares that are worked on side by side and joined in order, so that few rows that see much do not
// leave the GPU idle. A row's result then depends on the same few things, but its bits differ from those without shares.
struct attention_shares {
  void* workspace = nullptr;       // on 16 bytes; null: no shares
  std::size_t workspace_bytes = 0; // at least one tile's; with `last_position` all tiles', up to `longest`
  std::int32_t tile_rows = 0;      // most rows of a tile
  std::int32_t longest = 0;        // positions of the longest row that may come
  // Device memory, or null: the last position of all rows. Launches can then be captured, for rows of any length up to `longest`.
  const std::int32_t* last_position = nullptr;
};
// Bytes for `tiles` tiles at once.
std::size_t attention_shares_workspace(std::int32_t tiles, std::int32_t tile_rows, std::int32_t heads, std::int32_t head_dim,
                                       std::int32_t longest);

// The row at position p sees positions max(0, p - window + 1) .. p. o = sum_j softmax_j(scale * q . k_j) v_j with f32 sums; weights are
// rounded to the element type before they meet the values. A row's result depends on nothing but its own position, query, keys and values.
struct prefill_attention_args {
  const void* query = nullptr;    // [rows][heads][head_dim], of the cache's type, 16-byte aligned
  std::int64_t query_stride = 0;  // elements, a multiple of 8
  void* output = nullptr;         // [rows][heads][head_dim], 4-byte aligned
  std::int64_t output_stride = 0; // even
  std::int32_t rows = 0;          // of query and output
  std::int32_t heads = 0;         // a multiple of the KV heads, at most 64 of them share one
  float scale = 1;
  std::int32_t window = 0;             // 0: everything before the row
  const prefill_tile* tiles = nullptr; // [tile_count], device memory, from split_prefill with the same heads
  std::int32_t tile_count = 0;
  const std::int32_t* block_tables = nullptr; // [..][table_stride], device memory; each up to the block of its span's last position
  std::int64_t table_stride = 0;
  kv_layer_view kv;        // bf16 or f16; block_size a multiple of 16, head_dim 64 or 128; 16-byte aligned
  std::int32_t blocks = 0; // in kv
  attention_shares shares;
  bool overlaps = false; // as in linear_args
};

void prefill_attention(cuda::stream_handle on, const prefill_attention_args& args);

} // namespace troupe::gpu
