#include "kernels/step_rows_gpu.hpp"

#include <algorithm>

#include "kernels/half_types.cuh"
#include "kernels/launch.cuh"

namespace troupe::gpu {
namespace {

constexpr unsigned threads = 256;

unsigned blocks_for(std::int32_t count) { return (static_cast<unsigned>(count) + threads - 1) / threads; }

__global__ void change_slots_kernel(change_slots_args a) {
  let_next_start();
  wait_for_previous();
  const std::int32_t i = static_cast<std::int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < a.opened_count) {
    const opened_slot& opened = a.opened[i];
    a.slots.sampling[opened.slot] = opened.sampling;
    a.slots.faulted[opened.slot] = 0;
    a.slots.last_token[opened.slot] = 0;
  }
  if (i < a.table_count) {
    const table_change& change = a.tables[i];
    a.slots.block_tables[change.slot * a.slots.table_stride + change.index] = change.block;
  }
  if (i < a.bias_count) a.slots.biases[a.biases[i].slot * most_biased_tokens + a.biases[i].index] = a.biases[i].entry;
  if (i < a.suppressed_count) {
    a.slots.suppressed[a.suppressed[i].slot * most_biased_tokens + a.suppressed[i].index] = a.suppressed[i].entry.token;
  }
}

__device__ token_id input_of(const prepare_rows_args& a, const step_row& row) {
  return row.token < 0 ? a.slots.last_token[row.slot] : row.token;
}

// A block a row, then a block for each `threads` heads.
__global__ void prepare_rows_kernel(prepare_rows_args a) {
  let_next_start();
  wait_for_previous();
  const std::int32_t block = static_cast<std::int32_t>(blockIdx.x), thread = static_cast<std::int32_t>(threadIdx.x);
  if (block >= a.row_count) {
    const std::int32_t i = (block - a.row_count) * static_cast<std::int32_t>(threads) + thread;
    if (i >= a.head_count) return;
    const step_head head = a.heads[i];
    a.head_rows[i] = head.row;
    a.head_inputs[i] = input_of(a, a.rows[head.row]);
    sampling_row sampling = head.sampling;
    if (i < a.kept_count) sampling.kept = a.kept + i, sampling.result = a.results + i;
    a.sampling[i] = sampling;
    return;
  }
  const step_row row = a.rows[block];
  const token_id token = input_of(a, row);
  if (thread == 0 && block == 0 && a.last_position != nullptr) *a.last_position = a.longest_row;
  if (thread == 0) {
    a.tokens[block] = token;
    a.positions[block] = row.position;
    a.tables[block] = row.slot;
    if (a.row_tiles != nullptr && block < a.table_rows) a.row_tiles[block] = {block, 1, row.position, row.position + 1, row.slot};
  }
  if (block < a.table_rows) {
    const std::int32_t* from = a.slots.block_tables + row.slot * a.slots.table_stride;
    std::int32_t* to = a.row_tables + block * a.slots.table_stride;
    for (std::int32_t i = thread; i <= row.position / a.block_size; i += static_cast<std::int32_t>(threads)) to[i] = from[i];
  }
  if (a.embedding == nullptr) return;
  const auto* from = reinterpret_cast<const uint4*>(a.embedding + token * a.row_bytes);
  auto* to = reinterpret_cast<uint4*>(a.hidden + block * a.row_bytes);
  for (std::int64_t i = thread; i < a.row_bytes / std::int64_t{sizeof(uint4)}; i += threads) to[i] = from[i];
}

__device__ bool usable(const keep_draws_args& a, const step_item& item) {
  if (a.slots.faulted[item.slot] != 0) return false;
  for (std::int32_t i = 0; i < item.scores; ++i) {
    if (a.sampled[item.first_head + i].usable == 0) return false;
  }
  return true;
}

// Draws that count, or none where one of them cannot be used.
__device__ item_result walk_draws(const keep_draws_args& a, const step_item& item) {
  item_result result;
  result.faulted = usable(a, item) ? 0 : 1;
  const std::int32_t first = item.first_head + item.scores;
  for (std::int32_t i = 0; i < item.draws && result.faulted == 0; ++i) {
    const sampled_token drawn = a.sampled[first + i];
    if (drawn.usable == 0) {
      result.faulted = 1;
      break;
    }
    ++result.drawn;
    a.slots.last_token[item.slot] = drawn.token;
    if (item.draws > 1) a.counted[first + i] = {item.slot, drawn.token, 1};
    if (i + 1 < item.draws && a.head_inputs[first + i + 1] != drawn.token) break;
  }
  if (result.faulted != 0) {
    a.slots.faulted[item.slot] = 1;
    result.drawn = 0;
  }
  return result;
}

// One block: items overwrite what the loop before them writes.
__global__ void keep_draws_kernel(keep_draws_args a) {
  let_next_start();
  wait_for_previous();
  const std::int32_t thread = static_cast<std::int32_t>(threadIdx.x), step = static_cast<std::int32_t>(blockDim.x);
  for (std::int32_t i = thread; i < a.head_count; i += step) {
    a.kept[i] = a.sampled[i];
    a.counted[i] = {a.spare_slot, 0, 1};
  }
  if (a.kept_best != nullptr) {
    for (std::int32_t i = thread; i < a.head_count * most_best_tokens; i += step) a.kept_best[i] = a.best[i];
  }
  __syncthreads();
  for (std::int32_t i = thread; i < a.item_count; i += step) a.results[i] = walk_draws(a, a.items[i]);
}

__global__ void copy_blocks_kernel(copy_blocks_args a) {
  let_next_start();
  wait_for_previous();
  const copied_block pair = a.pairs[blockIdx.x];
  std::byte* layer = a.data + blockIdx.y * a.layer_bytes;
  const uint4* from = reinterpret_cast<const uint4*>(layer + static_cast<std::size_t>(pair.from) * a.block_bytes);
  uint4* to = reinterpret_cast<uint4*>(layer + static_cast<std::size_t>(pair.to) * a.block_bytes);
  for (std::size_t i = threadIdx.x; i < a.block_bytes / sizeof(uint4); i += blockDim.x) to[i] = from[i];
}

} // namespace

void change_slots(cuda::stream_handle on, const change_slots_args& args) {
  const std::int32_t most = std::max({args.opened_count, args.table_count, args.bias_count, args.suppressed_count});
  if (most == 0) return;
  launch(on, {blocks_for(most), threads}, change_slots_kernel, args);
}

void prepare_rows(cuda::stream_handle on, const prepare_rows_args& args) {
  require(args.row_count >= 1 && args.table_rows <= args.row_count, "prepare_rows", "at least one row, and no more tables than rows");
  require(args.embedding == nullptr || args.row_bytes % sizeof(uint4) == 0, "prepare_rows", "a row is a multiple of 16 bytes");
  const unsigned blocks = static_cast<unsigned>(args.row_count) + blocks_for(args.head_count);
  launch(on, launch_shape(blocks, threads).split_for_rows(args.row_count), prepare_rows_kernel, args);
}

void keep_draws(cuda::stream_handle on, const keep_draws_args& args) {
  if (args.item_count == 0) return;
  launch(on, launch_shape(1, 1024).split_for_rows(args.item_count), keep_draws_kernel, args);
}

void copy_blocks(cuda::stream_handle on, const copy_blocks_args& args) {
  require(args.block_bytes % sizeof(uint4) == 0, "copy_blocks", "a block is a multiple of 16 bytes");
  if (args.pair_count == 0 || args.layers == 0) return;
  launch(on, {dim3(static_cast<unsigned>(args.pair_count), static_cast<unsigned>(args.layers)), threads}, copy_blocks_kernel, args);
}

} // namespace troupe::gpu
