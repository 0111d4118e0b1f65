// Causal attention over a paged KV cache, and the writing of its keys and values.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/ids.hpp"
#include "device/cpu/thread_pool.hpp"
#include "device/kv_layout.hpp"

namespace troupe {

// Neighbouring rows of a batch that are neighbouring positions of one sequence.
struct attention_span {
  std::int32_t first_row = 0;
  std::int32_t rows = 0;
  std::int32_t first_position = 0;
  const block_id* blocks = nullptr; // the sequence's table, up to the block of its last row
};

struct kv_write_args {
  const float* key = nullptr;   // [rows][kv_heads][head_dim]
  const float* value = nullptr; // likewise
  std::int64_t stride = 0;      // elements from row to row, of both
  std::span<const attention_span> spans;
  kv_layer_view kv;
};

// A share of the attention of one step, the same for all layers: some rows of one span for one KV head.
struct attention_unit {
  std::int32_t span = 0;
  std::int32_t first_row = 0; // within the span
  std::int32_t rows = 0;
  std::int32_t kv_head = 0;
};

// Row at position p sees positions max(0, p - window + 1) .. p, those of this batch included (write them first).
// o = sum_j softmax_j(scale * q . k_j) v_j with f32 accumulation. Positions are taken in tiles that start at multiples of a constant,
// so a row's result depends on nothing but its own position, queries, keys and values.
struct attention_args {
  const float* query = nullptr; // [rows][heads][head_dim]; heads / kv_heads neighbouring heads share a KV head
  std::int64_t query_stride = 0;
  float* output = nullptr; // [rows][heads][head_dim]
  std::int64_t output_stride = 0;
  std::int32_t heads = 0;
  float scale = 1;
  std::int32_t window = 0; // 0: everything before the row
  std::span<const attention_span> spans;
  std::span<const attention_unit> units; // from split_attention over the same spans
  kv_layer_view kv;
};

namespace cpu {

// Fills `units` so that they cover every row and KV head once, the longest first.
void split_attention(std::span<const attention_span> spans, std::int32_t heads, std::int32_t kv_heads, std::vector<attention_unit>& units);
void kv_write(thread_pool& pool, const kv_write_args& args);
void attention(thread_pool& pool, const attention_args& args);

} // namespace cpu
} // namespace troupe
