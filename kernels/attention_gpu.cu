// Decode attention on the matrix units. Up to 8 heads that share a KV head are the columns, so the keys and values, which are most of the
// bytes, are read once: scores^T (16 positions x 8 heads) = K^T q^T, output^T (dimensions x 8 heads) = V^T weights^T.
#include <algorithm>

#include "kernels/attention_gpu.hpp"
#include "kernels/attention_tile.cuh"
#include "kernels/launch.cuh"
#include "kernels/linear_paths.cuh"

namespace troupe::gpu {
namespace {

constexpr const char* op = "decode attention";
constexpr int warps = 4;
constexpr int max_splits = 64;

struct attention_shape {
  std::int32_t heads, kv_heads, group, group_tiles; // heads per KV head, and how many tiles of 8 heads that makes
  std::int32_t block_size, window, splits, unsettled;
  std::int64_t query_stride, output_stride;
  float scale_log2; // scale * log2(e): weights are powers of two
};

template <int HeadDim>
struct shared_state {
  float top[warps][group_heads], sum[warps][group_heads];
  float scale[group_heads][max_splits];
  bool last;
};

// The warps' parts of each head: {top, sum} in shared.top and .sum, weighted values in mix [warp][head][HeadDim + 1].
template <int HeadDim>
__device__ void publish_warp(const head_state<HeadDim>& state, std::int32_t warp, std::int32_t lane, shared_state<HeadDim>& shared,
                             float (*mix)[HeadDim + 1]) {
  const std::int32_t g = lane / 4, t = lane % 4;
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    float sum = state.sum[c];
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) sum += __shfl_xor_sync(0xffffffffU, sum, distance);
    if (g == 0) shared.top[warp][2 * t + c] = state.top[c], shared.sum[warp][2 * t + c] = sum;
#pragma unroll
    for (int m = 0; m < HeadDim / 16; ++m) {
      mix[warp * group_heads + 2 * t + c][16 * m + g] = state.mix[m][c];
      mix[warp * group_heads + 2 * t + c][16 * m + g + 8] = state.mix[m][2 + c];
    }
  }
}

// The shares of each head, in their order, become its output. Called by all threads of the block.
template <class T, int HeadDim>
__device__ void join_shares(const float* parts, std::int32_t splits, std::int32_t live, shared_state<HeadDim>& shared, T* output) {
  constexpr int part = HeadDim + 2, threads = warps * 32;
  constexpr int each = group_heads * HeadDim > threads ? group_heads * HeadDim / threads : 1; // outputs of a thread
  const std::int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (std::int32_t h = warp; h < live; h += warps) { // a lane a share, max_splits / 32 times
    float tops[max_splits / 32], sum = 0, top = minus_infinity;
#pragma unroll
    for (int i = 0; i < max_splits / 32; ++i) {
      const std::int32_t p = lane + 32 * i;
      tops[i] = p < splits ? __ldcg(parts + (p * group_heads + h) * part) : minus_infinity;
      top = fmaxf(top, tops[i]);
    }
    for (int distance = 16; distance > 0; distance /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, distance));
#pragma unroll
    for (int i = 0; i < max_splits / 32; ++i) {
      const std::int32_t p = lane + 32 * i;
      const float scale = tops[i] == minus_infinity ? 0.0F : exp2f(tops[i] - top);
      if (p < splits) sum += scale * __ldcg(parts + (p * group_heads + h) * part + 1), shared.scale[h][p] = scale;
    }
    sum = warp_sum(sum);
    if (lane == 0) shared.sum[0][h] = sum;
  }
  __syncthreads();
  float mix[each] = {};
#pragma unroll 4
  for (std::int32_t p = 0; p < splits; ++p) {
#pragma unroll
    for (int e = 0; e < each; ++e) {
      const int i = static_cast<int>(threadIdx.x) + e * threads, h = i / HeadDim;
      if (h < live) mix[e] += shared.scale[h][p] * __ldcg(parts + (p * group_heads + h) * part + 2 + i % HeadDim);
    }
  }
#pragma unroll
  for (int e = 0; e < each; ++e) {
    const int i = static_cast<int>(threadIdx.x) + e * threads, h = i / HeadDim;
    if (h < live) output[i] = from_float<T>(mix[e] / shared.sum[0][h]);
  }
}

// One block: positions of share blockIdx.x of row blockIdx.z, for up to 8 heads of one KV head (blockIdx.y). Its warps take every fourth
// tile, each with its own tiles under way. The block that finishes a row's heads last joins the shares, in their order.
template <class T, int HeadDim>
__global__ void __launch_bounds__(warps * 32, 2) decode_kernel(const __grid_constant__ attention_shape s, const T* query, T* output,
                                                               row_places places, const T* kv, std::uint32_t* counters, float* parts) {
  extern __shared__ __align__(128) std::byte dynamic[];
  __shared__ shared_state<HeadDim> shared;
  const std::int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = blockIdx.z;
  const std::int32_t kv_head = blockIdx.y / s.group_tiles, in_group = blockIdx.y % s.group_tiles * group_heads;
  const std::int32_t head = kv_head * s.group + in_group, live = min(group_heads, s.group - in_group);
  if (s.unsettled == 0) wait_for_previous();
  const std::int32_t high = places.positions[row] + 1, low = s.window > 0 ? max(0, high - s.window) : 0;
  const std::int32_t tiles = (high + tile - 1) / tile, first_tile = low / tile;
  const std::int32_t share = (tiles - first_tile + s.splits - 1) / s.splits;
  const std::int32_t begin = first_tile + share * static_cast<std::int32_t>(blockIdx.x), end = min(tiles, begin + share);

  const kv_place<T> place{kv, places.block_tables + row * places.table_stride, s.block_size, s.kv_heads, kv_head};
  tile_pipe<T, HeadDim> pipe(place, dynamic + warp * tile_pipe<T, HeadDim>::bytes, begin + warp, warps, end, low, high, lane);
  if (s.unsettled > 0) {
    pipe.fill((high - s.unsettled) / tile); // tiles whose last position is settled
    wait_for_previous();
  }
  let_next_start();
  pipe.fill(end);
  query_fragments<T, HeadDim> q(query + row * s.query_stride + head * HeadDim, live, lane);
  head_state<HeadDim> state;
  for (std::int32_t at = begin + warp; at < end; at += warps) {
    const std::byte* const kv_tile = pipe.wait();
    take_tile<T, HeadDim>(kv_tile, q, at * tile, low, high, s.scale_log2, lane, state);
    pipe.pass();
  }
  pipe.drain();
  __syncthreads(); // the tiles' place is free
  auto* const mix = reinterpret_cast<float(*)[HeadDim + 1]>(dynamic);
  publish_warp<HeadDim>(state, warp, lane, shared, mix);
  __syncthreads();

  // A part in the workspace: [row][blockIdx.y][split][head] of {top, sum, mix[HeadDim]}.
  constexpr int part = HeadDim + 2;
  const std::int64_t unit = std::int64_t{row} * gridDim.y + blockIdx.y;
  float* const mine = parts + (unit * s.splits + blockIdx.x) * group_heads * part;
  for (int i = threadIdx.x; i < live * HeadDim; i += warps * 32) {
    const int h = i / HeadDim, d = i % HeadDim;
    float top = minus_infinity, sum = 0, mixed = 0;
#pragma unroll
    for (int w = 0; w < warps; ++w) top = fmaxf(top, shared.top[w][h]);
#pragma unroll
    for (int w = 0; w < warps; ++w) {
      const float scale = shared.top[w][h] == minus_infinity ? 0.0F : exp2f(shared.top[w][h] - top);
      sum += shared.sum[w][h] * scale;
      mixed += mix[w * group_heads + h][d] * scale;
    }
    if (s.splits == 1) {
      output[row * s.output_stride + (head + h) * HeadDim + d] = from_float<T>(mixed / sum);
      continue;
    }
    if (d == 0) mine[h * part] = top, mine[h * part + 1] = sum;
    mine[h * part + 2 + d] = mixed;
  }
  if (s.splits == 1) return;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) shared.last = atomicAdd(counters + unit, 1U) == static_cast<std::uint32_t>(s.splits) - 1;
  __syncthreads();
  if (!shared.last) return;
  __threadfence();
  join_shares<T, HeadDim>(parts + unit * s.splits * group_heads * part, s.splits, live, shared,
                          output + row * s.output_stride + head * HeadDim);
  if (threadIdx.x == 0) counters[unit] = 0;
}

template <class T, int HeadDim>
void start(cuda::stream_handle on, const decode_attention_args& args) {
  const kv_layout& layout = args.kv.layout;
  attention_shape s{};
  s.heads = args.heads;
  s.kv_heads = layout.kv_heads;
  s.group = args.heads / layout.kv_heads;
  s.group_tiles = (s.group + group_heads - 1) / group_heads;
  s.block_size = layout.block_size;
  s.window = args.window;
  s.splits = args.splits;
  s.unsettled = args.unsettled;
  s.query_stride = args.query_stride;
  s.output_stride = args.output_stride;
  s.scale_log2 = args.scale * 1.4426950408889634F;
  const dim3 grid(static_cast<unsigned>(args.splits), static_cast<unsigned>(layout.kv_heads * s.group_tiles),
                  static_cast<unsigned>(args.rows));
  auto* counters = static_cast<std::uint32_t*>(args.workspace);
  auto* parts = reinterpret_cast<float*>(static_cast<std::byte*>(args.workspace) + decode_attention_counters(args.rows, args.heads));
  launch(on, {grid, warps * 32, warps * tile_pipe<T, HeadDim>::bytes, args.overlaps}, decode_kernel<T, HeadDim>, s,
         static_cast<const T*>(args.query), static_cast<T*>(args.output), args.places, reinterpret_cast<const T*>(args.kv.data), counters,
         parts);
}

} // namespace

std::int32_t decode_attention_splits(std::int32_t rows, std::int32_t heads, std::int32_t kv_heads, std::int32_t longest) {
  const std::int32_t units = rows * kv_heads * ((heads / kv_heads + group_heads - 1) / group_heads);
  return std::clamp(std::min(2 * multiprocessors() / units, longest / (warps * tile)), 1, max_splits);
}

std::size_t decode_attention_counters(std::int32_t rows, std::int32_t heads) {
  return (static_cast<std::size_t>(rows) * static_cast<std::size_t>(heads) * 4 + 255) / 256 * 256;
}

std::size_t decode_attention_workspace(std::int32_t rows, std::int32_t heads, std::int32_t head_dim, std::int32_t splits) {
  // Heads come in tiles of 8; at worst each has a tile to itself.
  const std::size_t parts =
      static_cast<std::size_t>(rows) * static_cast<std::size_t>(group_heads * heads) * static_cast<std::size_t>(splits);
  return decode_attention_counters(rows, heads) + parts * static_cast<std::size_t>(head_dim + 2) * sizeof(float);
}

void decode_attention(cuda::stream_handle on, const decode_attention_args& args) {
  const kv_layout& layout = args.kv.layout;
  require(args.rows >= 1 && args.rows <= 65535 && args.splits >= 1 && args.splits <= max_splits, op, "1 to 65535 rows, 1 to 64 splits");
  require(layout.kv_heads > 0 && args.heads > 0 && args.heads % layout.kv_heads == 0, op, "heads are a multiple of the KV heads");
  require(layout.block_size > 0 && layout.block_size % tile == 0, op, "blocks hold a multiple of 16 positions");
  require(layout.head_dim == 64 || layout.head_dim == 128, op, "head_dim is 64 or 128");
  require(args.workspace != nullptr || args.splits == 1, op, "splits need a workspace");
  with_half_type(layout.type, op, [&]<class T>() {
    if (layout.head_dim == 64)
      start<T, 64>(on, args);
    else
      start<T, 128>(on, args);
  });
}

} // namespace troupe::gpu
