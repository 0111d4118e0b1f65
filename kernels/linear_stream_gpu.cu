// Products of 1 to 8 rows. Each warp brings its own pieces of W into shared memory, rows of 512 bytes at a time, well ahead.
//
// A warp's group is 16 rows of W (8 pairs) and 256 columns, in 8 items of 32 columns: lane 4 g + t takes columns 8 t .. 8 t + 7 of both
// rows of pair g, 16 bytes each. The matrix instruction takes them as columns 2t, 2t+1, 2t+8, 2t+9 of its own order, twice; a sum does not
// mind, as x is read the same way. The warps of a block share the columns of a tile, the blocks the tiles. Their sums meet in shared
// memory; two of the warps finish a tile, later than they have gone on to the next one, so that none waits for the slowest.
//
// A block takes more than half a multiprocessor's shared memory. Otherwise, when launches overlap, blocks of the next kernel could come to
// lie in twos where one of this kernel is done already, and on half of the multiprocessors from then on.
#include <algorithm>

#include "kernels/linear_stream.cuh"

namespace troupe::gpu {
namespace {

using namespace streamed;

template <class T, class Epilogue>
__global__ void __launch_bounds__(registers_for, 1)
    stream_kernel(const __grid_constant__ stream_shape s, const __grid_constant__ Epilogue epilogue) {
  extern __shared__ __align__(128) std::byte shared[]; // by warp: slots of W, slots of x, norm weights, barriers
  __shared__ block_state state;
  const std::int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const std::int32_t slot_bytes = s.slots * s.rows * x_pitch, norm_bytes = s.norm_weight != nullptr ? s.steps * group_columns * 2 : 0;
  std::byte *const slots = shared + w_bytes, *const norms = slots + warps * slot_bytes;
  const std::int32_t tiles = (s.tiles - static_cast<std::int32_t>(blockIdx.x) + static_cast<std::int32_t>(gridDim.x) - 1) /
                             static_cast<std::int32_t>(gridDim.x); // of this block
  w_pipe<T> w(s, shared + warp * w_slots * w_slot_bytes, tiles, warp * group_columns, lane);
  x_slots x(s, slots + warp * slot_bytes, norms + warp * norm_bytes,
            reinterpret_cast<std::uint64_t*>(norms + warps * norm_bytes) + warp * (s.slots + 1), warp * group_columns, lane);
  x.prepare(); // brings the norm's weights: behind W they would be as late as its last piece
#pragma unroll
  for (int i = 0; i < w_slots; ++i) w.fetch();
  if (threadIdx.x == 0) tile_sums<T, Epilogue>::prepare(state);
  __syncthreads();
  wait_for_previous();
  const bool x_stays = s.slots == s.steps;
  bool asked = false;
  std::int32_t fetched = 0; // steps of x
  const std::int32_t passes = (tiles + s.together - 1) / s.together, wanted = x_stays ? s.steps : passes * s.steps;
  for (; fetched < s.slots; ++fetched) x.fetch(fetched, fetched);
  tile_sums<T, Epilogue> outputs(s, epilogue, state);
  outputs.begin();
  if (s.norm_weight != nullptr) x.wait_for_norm();

  std::int32_t slot = 0;
  std::uint32_t parity = 0;
  float squares[stream_rows] = {}; // of the whole first pass
  for (std::int32_t k = 0; k < tiles; k += s.together) {
    const std::int32_t end = min(tiles, k + s.together);
    for (std::int32_t n = k; n < end; ++n) outputs.expect(n);
    float sums[2][2][4] = {}; // of a tile two, of every other item: shorter chains of sums
    for (std::int32_t step = 0; step < s.steps; ++step) {
      const std::int32_t x_slot = x_stays ? step : slot;
      if (k == 0 || !x_stays) {
        x.wait(x_slot, parity);
        if (s.norm_weight != nullptr) x.template scale<T>(step, x_slot, squares);
      }
      const std::int32_t columns_left = g < s.rows ? s.columns - step * step_columns - warp * group_columns - t * 8 : 0;
      const std::byte* const piece = x.slot(x_slot) + g * x_pitch + t * 16;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if (k + j >= end) break;
        w.wait();
#pragma unroll
        for (int i = 0; i < items; ++i) {
          uint4 v{}, of_w[2];
          if (i * 32 < columns_left) v = *reinterpret_cast<const uint4*>(piece + i * 64);
          w.read(i, of_w);
          multiply<T>(sums[j][i % 2], of_w, v);
        }
        __syncwarp();
        w.fetch();
        if (!asked && w.done())
          let_next_start(), asked = true; // not before: its blocks bring their first groups when this one has none left
      }
      if (fetched < wanted) {
        fence_for_copies(); // the norm has stored there
        __syncwarp();
        x.fetch(fetched % s.steps, slot);
        ++fetched;
      }
      if (!x_stays && ++slot == s.slots) slot = 0, parity ^= 1;
    }
    if (k == 0 && s.norm_weight != nullptr) {
#pragma unroll
      for (int i = 0; i < stream_rows; ++i) {
        const float sum = warp_sum(squares[i]);
        if (lane == 0) state.squares[warp][i] = sum;
      }
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      if (k + j >= end) break;
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[j][0][i] += sums[j][1][i];
      outputs.write(k + j, sums[j][0]);
    }
    for (std::int32_t n = k - s.together; n >= 0 && n < k; ++n) outputs.finish(n);
  }
  for (std::int32_t n = (passes - 1) * s.together; n < tiles; ++n) outputs.finish(n);
}

} // namespace

template <class T, class Epilogue>
void start_stream(cuda::stream_handle on, const linear_args& args, row_pairs outputs, const Epilogue& epilogue) {
  stream_shape s{};
  s.weight = args.weight;
  s.x = args.x;
  s.norm_weight = args.norm_weight;
  s.x_stride = args.x_stride;
  s.columns = static_cast<std::int32_t>(args.columns);
  s.rows = args.rows;
  s.tiles = (outputs.pairs + 7) / 8;
  s.last_row = static_cast<std::int32_t>(args.out_rows - 1);
  s.distance = outputs.distance;
  s.epsilon = args.epsilon;
  s.steps = (s.columns + step_columns - 1) / step_columns;
  constexpr std::size_t most = 227 * 1024 - sizeof(block_state) - w_bytes; // of a block's shared memory for x, the norm and barriers
  const std::size_t slot_bytes = static_cast<std::size_t>(warps * args.rows) * x_pitch + warps * sizeof(std::uint64_t);
  const std::size_t fixed =
      (args.norm_weight == nullptr ? 0 : static_cast<std::size_t>(s.steps) * step_columns * 2) + warps * sizeof(std::uint64_t);
  require(fixed + slot_bytes <= most, "linear", "too many columns for a norm");
  s.slots = std::min(s.steps, static_cast<std::int32_t>((most - fixed) / slot_bytes));
  s.together = s.slots == s.steps ? 1 : 2;
  const std::size_t needed = w_bytes + fixed + static_cast<std::size_t>(s.slots) * slot_bytes;
  const auto grid = static_cast<unsigned>(std::min(s.tiles, multiprocessors()));
  launch(on, {grid, threads, needed, args.overlaps}, stream_kernel<T, Epilogue>, s, epilogue);
}

template void start_stream<bf16>(cuda::stream_handle, const linear_args&, row_pairs, const store_epilogue<bf16, bf16>&);
template void start_stream<bf16>(cuda::stream_handle, const linear_args&, row_pairs, const store_epilogue<bf16, float>&);
template void start_stream<bf16>(cuda::stream_handle, const linear_args&, row_pairs, const swiglu_epilogue<bf16>&);
template void start_stream<bf16>(cuda::stream_handle, const linear_args&, row_pairs, const qkv_epilogue<bf16>&);
template void start_stream<f16>(cuda::stream_handle, const linear_args&, row_pairs, const store_epilogue<f16, f16>&);
template void start_stream<f16>(cuda::stream_handle, const linear_args&, row_pairs, const store_epilogue<f16, float>&);
template void start_stream<f16>(cuda::stream_handle, const linear_args&, row_pairs, const swiglu_epilogue<f16>&);
template void start_stream<f16>(cuda::stream_handle, const linear_args&, row_pairs, const qkv_epilogue<f16>&);

} // namespace troupe::gpu
