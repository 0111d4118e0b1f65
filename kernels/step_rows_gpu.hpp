// The borders of a step on the GPU: what stays on the device from step to step, how rows are laid out before the layers, and what of the
// draws is kept behind them. All pointers are device memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/ids.hpp"
#include "device/cuda/handles.hpp"
#include "kernels/prefill_attention_gpu.hpp"
#include "kernels/sampling_gpu.hpp"

namespace troupe::gpu {

// One entry a slot, and a last one that is nobody's, where padding rows stand: its blocks may be written by anybody.
struct slot_arrays {
  token_id* last_token = nullptr; // sampled last, not yet a row
  std::int32_t* faulted = nullptr;
  sampling_slot* sampling = nullptr;
  token_bias* biases = nullptr;         // [slots][most_biased_tokens]
  token_id* suppressed = nullptr;       // likewise
  std::int32_t* block_tables = nullptr; // [slots][table_stride]
  std::int64_t table_stride = 0;
};

struct opened_slot {
  std::int32_t slot = 0;
  sampling_slot sampling;
};

struct table_change {
  std::int32_t slot = 0;
  std::int32_t index = 0; // logical block
  block_id block = 0;
};

// An entry of a slot's list of biases, or of suppressed tokens.
struct listed_token {
  std::int32_t slot = 0;
  std::int32_t index = 0;
  token_bias entry;
};

struct change_slots_args {
  slot_arrays slots;
  const opened_slot* opened = nullptr; // each slot once
  std::int32_t opened_count = 0;
  const table_change* tables = nullptr; // each entry once
  std::int32_t table_count = 0;
  const listed_token* biases = nullptr;
  std::int32_t bias_count = 0;
  const listed_token* suppressed = nullptr;
  std::int32_t suppressed_count = 0;
};
void change_slots(cuda::stream_handle on, const change_slots_args& args);

struct step_row {
  std::int32_t slot = 0;
  std::int32_t position = 0;
  token_id token = 0; // below 0: the slot's last sample
};

// Logits that are wanted, and what for.
struct step_head {
  std::int32_t row = 0;
  sampling_row sampling;
};

struct prepare_rows_args {
  slot_arrays slots;
  const step_row* rows = nullptr;
  std::int32_t row_count = 0;
  std::int32_t table_rows = 0; // the first so many rows get a block table of their own
  const step_head* heads = nullptr;
  std::int32_t head_count = 0;
  std::int32_t block_size = 0;
  token_id* tokens = nullptr;            // [row_count]
  std::int32_t* positions = nullptr;     // [row_count]
  std::int32_t* tables = nullptr;        // [row_count]: the row's slot, which is its row of slots.block_tables
  std::int32_t* row_tables = nullptr;    // [table_rows][slots.table_stride], up to the block of the row's position
  prefill_tile* row_tiles = nullptr;     // [table_rows] or null: those rows as tiles of one row each, whose tables are slots
  std::int32_t* last_position = nullptr; // becomes longest_row, with row_tiles
  std::int32_t longest_row = 0;          // the last position of the first table_rows rows
  std::int32_t* head_rows = nullptr;     // [head_count]
  token_id* head_inputs = nullptr;       // [head_count]: tokens of the heads' rows
  sampling_row* sampling = nullptr;      // [head_count]
  // Of the first so many heads, each the one draw of its item: where sample() puts the draws and results, so that keep_draws() is not
  // needed.
  std::int32_t kept_count = 0;
  sampled_token* kept = nullptr;
  item_result* results = nullptr;
  // Rows of hidden states to begin with, where given: hidden [row_count][row_bytes] gets the tokens' rows of the embedding.
  const std::byte* embedding = nullptr;
  std::byte* hidden = nullptr;
  std::int64_t row_bytes = 0; // a multiple of 16
};
// One kernel, with `args` as its only argument: a graph that begins with it can be launched with others that have the same counts.
void prepare_rows(cuda::stream_handle on, const prepare_rows_args& args);

// A work item's heads follow each other: prompt tokens to score, then draws. With more than one draw, the input of each row after the first
// is a guess of the draw before it, and draws count up to the first that was guessed wrong.
struct step_item {
  std::int32_t slot = 0;
  std::int32_t first_head = 0;
  std::int32_t scores = 0;
  std::int32_t draws = 0;
};

struct keep_draws_args {
  slot_arrays slots; // last_token and faulted change
  const step_item* items = nullptr;
  std::int32_t item_count = 0;
  std::int32_t head_count = 0;
  const token_id* head_inputs = nullptr;  // as prepare_rows left them
  const sampled_token* sampled = nullptr; // [head_count]
  const scored_token* best = nullptr;     // [head_count][most_best_tokens]
  item_result* results = nullptr;         // [item_count]
  sampled_token* kept = nullptr;          // [head_count], a copy of `sampled`
  scored_token* kept_best = nullptr;      // a copy of `best`; null: nothing reports
  counted_token* counted = nullptr;       // [head_count]: draws of items with several, for count_tokens; others stand for `spare_slot`
  std::int32_t spare_slot = 0;
};
void keep_draws(cuda::stream_handle on, const keep_draws_args& args);

struct copied_block {
  block_id from = 0;
  block_id to = 0;
};

// Copies blocks in all layers of a KV cache; no block is in two pairs, unless it is the `from` of both.
struct copy_blocks_args {
  std::byte* data = nullptr;   // of the first layer
  std::size_t layer_bytes = 0; // from layer to layer
  std::size_t block_bytes = 0; // a multiple of 16
  std::int32_t layers = 0;
  const copied_block* pairs = nullptr;
  std::int32_t pair_count = 0;
};
void copy_blocks(cuda::stream_handle on, const copy_blocks_args& args);

} // namespace troupe::gpu
