#include "kernels/step_rows_gpu.hpp"

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
    sampling_row sampling = a.slots.sampling[head.slot];
    sampling.position = head.next_position;
    a.sampling[i] = sampling;
    return;
  }
  const step_row row = a.rows[block];
  if (thread == 0) {
    a.tokens[block] = row.token < 0 ? a.slots.last_token[row.slot] : row.token;
    a.positions[block] = row.position;
  }
  if (block >= a.table_rows) return;
  const std::int32_t* from = a.slots.block_tables + row.slot * a.slots.table_stride;
  std::int32_t* to = a.row_tables + block * a.slots.table_stride;
  for (std::int32_t i = thread; i <= row.position / a.block_size; i += static_cast<std::int32_t>(threads)) to[i] = from[i];
}

__device__ item_result walk_draws(const keep_draws_args& a, const step_item& item) {
  if (a.slots.faulted[item.slot] != 0) return {0, 1};
  item_result result;
  for (std::int32_t i = 0; i < item.heads; ++i) {
    const sampled_token drawn = a.sampled[item.first_head + i];
    if (drawn.usable == 0) {
      a.slots.faulted[item.slot] = 1;
      return {0, 1};
    }
    ++result.drawn;
    a.slots.last_token[item.slot] = drawn.token;
    const bool last = i + 1 == item.heads;
    if (!last && a.tokens[a.head_rows[item.first_head + i + 1]] != drawn.token) break;
  }
  return result;
}

__global__ void keep_draws_kernel(keep_draws_args a) {
  let_next_start();
  wait_for_previous();
  const std::int32_t i = static_cast<std::int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < a.head_count) a.kept[i] = a.sampled[i];
  if (i < a.item_count) a.results[i] = walk_draws(a, a.items[i]);
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
  const std::int32_t most = args.opened_count > args.table_count ? args.opened_count : args.table_count;
  if (most == 0) return;
  launch(on, {blocks_for(most), threads}, change_slots_kernel, args);
}

void prepare_rows(cuda::stream_handle on, const prepare_rows_args& args) {
  require(args.row_count >= 1 && args.table_rows <= args.row_count, "prepare_rows", "at least one row, and no more tables than rows");
  launch(on, {static_cast<unsigned>(args.row_count) + blocks_for(args.head_count), threads}, prepare_rows_kernel, args);
}

void keep_draws(cuda::stream_handle on, const keep_draws_args& args) {
  const std::int32_t most = args.item_count > args.head_count ? args.item_count : args.head_count;
  if (most == 0) return;
  launch(on, {blocks_for(most), threads}, keep_draws_kernel, args);
}

void copy_blocks(cuda::stream_handle on, const copy_blocks_args& args) {
  require(args.block_bytes % sizeof(uint4) == 0, "copy_blocks", "a block is a multiple of 16 bytes");
  if (args.pair_count == 0 || args.layers == 0) return;
  launch(on, {dim3(static_cast<unsigned>(args.pair_count), static_cast<unsigned>(args.layers)), threads}, copy_blocks_kernel, args);
}

} // namespace troupe::gpu
