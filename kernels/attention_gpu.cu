#include "kernels/attention_gpu.hpp"

#include <algorithm>

#include "kernels/half_types.cuh"
#include "kernels/launch.cuh"

namespace troupe::gpu {
namespace {

constexpr const char* op = "decode attention";
constexpr int warps = 4;
constexpr int tile = 16; // positions that a warp takes at once; they lie in one block of the cache
constexpr int max_splits = 64;
constexpr float minus_infinity = -INFINITY;

struct attention_shape {
  std::int32_t heads, kv_heads, group, group_tiles; // heads per KV head, and how many tiles of Group heads that makes
  std::int32_t block_size, window, splits;
  std::int64_t query_stride, output_stride;
  float scale_log2; // scale * log2(e): weights are powers of two
};

// What a warp, and later a block, knows of Group heads: largest score, sum of weights, weighted values (8 dimensions a lane).
template <int Group>
struct running {
  float top[Group], sum[Group], mix[Group][8];
};

// Each of Count values is summed over the lanes that differ in the bits of `distance`, 2 * distance, ..., 16, and lands on one of them:
// halves are exchanged, so that it takes Count - 1 shuffles and not Count per step. Returns values[0 .. Count / lanes) of the lane's share.
template <int Count, int Distance>
__device__ __forceinline__ void scatter_sum(float* values, std::int32_t lane) {
  if constexpr (Distance <= 16 && Count > 1) {
    constexpr int half = Count / 2;
    const bool upper = (lane & Distance) != 0;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const float sent = upper ? values[i] : values[i + half];
      const float kept = upper ? values[i + half] : values[i];
      values[i] = kept + __shfl_xor_sync(0xffffffffU, sent, Distance);
    }
    scatter_sum<half, Distance * 2>(values, lane);
  } else if constexpr (Distance <= 16) {
    values[0] += __shfl_xor_sync(0xffffffffU, values[0], Distance);
    scatter_sum<1, Distance * 2>(values, lane);
  }
}

// Scores of 16 positions for Group heads. Keys are [HeadDim][block_size]; a lane loads 8 neighbouring positions (which half: lane & 1) of
// the dimensions lane / 2, + 16, .... Writes scores[head][position] to the warp's shared memory.
template <class T, int HeadDim, int Group>
__device__ __forceinline__ void score_tile(const T* keys, std::int32_t block_size, const float (*query)[HeadDim], std::int32_t lane,
                                           float (*scores)[tile]) {
  float sums[Group * 8] = {}; // [head][position of the half]
  eight<T> k[HeadDim / 16];
#pragma unroll
  for (int i = 0; i < HeadDim / 16; ++i) k[i] = load_eight(keys + (i * 16 + lane / 2) * block_size + (lane & 1) * 8);
#pragma unroll
  for (int i = 0; i < HeadDim / 16; ++i) {
    float key[8];
#pragma unroll
    for (int p = 0; p < 8; ++p) key[p] = to_float(k[i].at[p]);
#pragma unroll
    for (int h = 0; h < Group; ++h) {
      const float q = query[h][i * 16 + lane / 2];
#pragma unroll
      for (int p = 0; p < 8; ++p) sums[h * 8 + p] += q * key[p];
    }
  }
  // 16 lanes share a half. With 8 * Group >= 16 values each lane ends with Group / 2 of them; with 8, two lanes end with the same one.
  scatter_sum<Group * 8, 2>(sums, lane);
  constexpr int left = Group >= 2 ? Group / 2 : 1;
  std::int32_t first = 0; // index of the lane's first value: bit by bit the halves it kept
#pragma unroll
  for (int distance = 2, half = Group * 4; distance <= 16 && half >= 1; distance *= 2, half /= 2)
    first += (lane & distance) != 0 ? half : 0;
#pragma unroll
  for (int i = 0; i < left; ++i) {
    const std::int32_t at = first + i;
    if (Group >= 2 || lane < 16) scores[at / 8][at % 8 + (lane & 1) * 8] = sums[i];
  }
}

// Takes 16 positions from `start` on, of which low .. high - 1 count, into `r`.
template <class T, int HeadDim, int Group>
__device__ __forceinline__ void take_tile(const T* keys, const T* values, const attention_shape& s, std::int32_t start, std::int32_t low,
                                          std::int32_t high, const float (*query)[HeadDim], std::int32_t lane, float (*scores)[tile],
                                          running<Group>& r) {
  constexpr int pieces = HeadDim / 8, together = 32 / pieces; // lanes a position, positions a load
  eight<T> v[tile / together];
#pragma unroll
  for (int i = 0; i < tile / together; ++i) v[i] = load_eight(values + (i * together + lane / pieces) * HeadDim + lane % pieces * 8);
  score_tile<T, HeadDim, Group>(keys, s.block_size, query, lane, scores);
  __syncwarp();
  const std::int32_t position = start + lane % tile;
  const bool seen = position >= low && position < high;
#pragma unroll
  for (int h = 0; h < Group; ++h) {
    const float score = seen ? scores[h][lane % tile] * s.scale_log2 : minus_infinity;
    float top = score;
#pragma unroll
    for (int distance = tile / 2; distance > 0; distance /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, distance));
    top = fmaxf(top, r.top[h]); // finite: a tile is taken only when some position of it is seen
    const float weight = exp2f(score - top), shrink = exp2f(r.top[h] - top);
    float sum = weight;
#pragma unroll
    for (int distance = tile / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffffU, sum, distance);
    r.top[h] = top;
    r.sum[h] = r.sum[h] * shrink + sum;
#pragma unroll
    for (int d = 0; d < 8; ++d) r.mix[h][d] *= shrink;
    __syncwarp();
    if (lane < tile) scores[h][lane] = weight;
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < tile / together; ++i) {
    const std::int32_t at = i * together + lane / pieces;
    if (start + at < low || start + at >= high) continue; // what lies there was never written, or is another row's
#pragma unroll
    for (int h = 0; h < Group; ++h) {
      const float weight = scores[h][at];
#pragma unroll
      for (int d = 0; d < 8; ++d) r.mix[h][d] += weight * to_float(v[i].at[d]);
    }
  }
  __syncwarp(); // the next tile writes scores
}

template <int HeadDim, int Group>
struct shared_state {
  float query[Group][HeadDim];
  float scores[warps][Group][tile];
  float top[warps][Group], sum[warps][Group];
  float mix[warps][Group][HeadDim];
  float scale[Group][max_splits];
  bool last;
};

// The warps' parts of each head become one: top and sum of the block, and mix in shared.mix[0]. Called by all threads of the block.
template <int HeadDim, int Group>
__device__ void join_warps(running<Group>& r, shared_state<HeadDim, Group>& shared) {
  constexpr int pieces = HeadDim / 8;
  const std::int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int h = 0; h < Group; ++h) {
#pragma unroll
    for (int d = 0; d < 8; ++d) {
      for (int distance = pieces; distance < 32; distance *= 2) r.mix[h][d] += __shfl_xor_sync(0xffffffffU, r.mix[h][d], distance);
    }
    if (lane < pieces) {
#pragma unroll
      for (int d = 0; d < 8; ++d) shared.mix[warp][h][lane * 8 + d] = r.mix[h][d];
    }
    if (lane == 0) shared.top[warp][h] = r.top[h], shared.sum[warp][h] = r.sum[h];
  }
  __syncthreads();
}

// The shares of each head, in their order, become its output. Called by all threads of the block.
template <class T, int HeadDim, int Group>
__device__ void join_shares(const float* parts, std::int32_t splits, std::int32_t live, shared_state<HeadDim, Group>& shared, T* output) {
  constexpr int part = HeadDim + 2, threads = warps * 32;
  constexpr int each = Group * HeadDim > threads ? Group * HeadDim / threads : 1; // outputs of a thread
  const std::int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (std::int32_t h = warp; h < live; h += warps) { // a lane a share, max_splits / 32 times
    float tops[max_splits / 32], sum = 0, top = minus_infinity;
#pragma unroll
    for (int i = 0; i < max_splits / 32; ++i) {
      const std::int32_t p = lane + 32 * i;
      tops[i] = p < splits ? __ldcg(parts + (p * Group + h) * part) : minus_infinity;
      top = fmaxf(top, tops[i]);
    }
    for (int distance = 16; distance > 0; distance /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, distance));
#pragma unroll
    for (int i = 0; i < max_splits / 32; ++i) {
      const std::int32_t p = lane + 32 * i;
      const float scale = tops[i] == minus_infinity ? 0.0F : exp2f(tops[i] - top);
      if (p < splits) sum += scale * __ldcg(parts + (p * Group + h) * part + 1), shared.scale[h][p] = scale;
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
      if (h < live) mix[e] += shared.scale[h][p] * __ldcg(parts + (p * Group + h) * part + 2 + i % HeadDim);
    }
  }
#pragma unroll
  for (int e = 0; e < each; ++e) {
    const int i = static_cast<int>(threadIdx.x) + e * threads, h = i / HeadDim;
    if (h < live) output[i] = from_float<T>(mix[e] / shared.sum[0][h]);
  }
}

// One block: positions of share blockIdx.x of row blockIdx.z, for Group heads of one KV head (blockIdx.y). The block that finishes a row's
// heads last joins the shares, in their order.
template <class T, int HeadDim, int Group>
__global__ void __launch_bounds__(warps * 32)
    decode_kernel(attention_shape s, const T* query, T* output, row_places places, const T* kv, std::uint32_t* counters, float* parts) {
  __shared__ shared_state<HeadDim, Group> shared;
  const std::int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = blockIdx.z;
  const std::int32_t kv_head = blockIdx.y / s.group_tiles, in_group = blockIdx.y % s.group_tiles * Group;
  const std::int32_t head = kv_head * s.group + in_group, live = min(Group, s.group - in_group);
  let_next_start();
  wait_for_previous();
  for (int i = threadIdx.x; i < Group * HeadDim; i += warps * 32) {
    const int h = i / HeadDim;
    shared.query[h][i % HeadDim] = h < live ? to_float(query[row * s.query_stride + (head + h) * HeadDim + i % HeadDim]) : 0.0F;
  }
  __syncthreads();

  const std::int32_t high = places.positions[row] + 1, low = s.window > 0 ? max(0, high - s.window) : 0;
  const std::int32_t tiles = (high + tile - 1) / tile, first_tile = low / tile;
  const std::int32_t share = (tiles - first_tile + s.splits - 1) / s.splits;
  const std::int32_t begin = first_tile + share * blockIdx.x, end = min(tiles, begin + share);
  running<Group> r;
#pragma unroll
  for (int h = 0; h < Group; ++h) {
    r.top[h] = minus_infinity, r.sum[h] = 0;
#pragma unroll
    for (int d = 0; d < 8; ++d) r.mix[h][d] = 0;
  }
  const std::int64_t of_head = std::int64_t{HeadDim} * s.block_size;
  for (std::int32_t at = begin + warp; at < end; at += warps) {
    const std::int32_t start = at * tile;
    const std::int64_t block = places.block_tables[row * places.table_stride + start / s.block_size];
    const T* keys = kv + (block * s.kv_heads + kv_head) * 2 * of_head;
    const std::int32_t inside = start % s.block_size;
    take_tile<T, HeadDim, Group>(keys + inside, keys + of_head + inside * HeadDim, s, start, low, high, shared.query, lane,
                                 shared.scores[warp], r);
  }
  join_warps<HeadDim, Group>(r, shared);

  // A part in the workspace: [row][blockIdx.y][split][Group] of {top, sum, mix[HeadDim]}.
  constexpr int part = HeadDim + 2;
  const std::int64_t unit = std::int64_t{row} * gridDim.y + blockIdx.y;
  float* mine = parts + (unit * s.splits + blockIdx.x) * Group * part;
  for (int i = threadIdx.x; i < Group * HeadDim; i += warps * 32) {
    const int h = i / HeadDim, d = i % HeadDim;
    float top = minus_infinity, sum = 0, mix = 0;
    for (int w = 0; w < warps; ++w) top = fmaxf(top, shared.top[w][h]);
    for (int w = 0; w < warps; ++w) {
      const float scale = shared.top[w][h] == minus_infinity ? 0.0F : exp2f(shared.top[w][h] - top);
      sum += shared.sum[w][h] * scale;
      mix += shared.mix[w][h][d] * scale;
    }
    if (s.splits == 1) {
      if (h < live) output[row * s.output_stride + (head + h) * HeadDim + d] = from_float<T>(mix / sum);
      continue;
    }
    if (d == 0) mine[h * part] = top, mine[h * part + 1] = sum;
    mine[h * part + 2 + d] = mix;
  }
  if (s.splits == 1) return;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) shared.last = atomicAdd(counters + unit, 1U) == static_cast<std::uint32_t>(s.splits) - 1;
  __syncthreads();
  if (!shared.last) return;
  __threadfence();
  join_shares<T, HeadDim, Group>(parts + unit * s.splits * Group * part, s.splits, live, shared,
                                 output + row * s.output_stride + head * HeadDim);
  if (threadIdx.x == 0) counters[unit] = 0;
}

// Heads that a block takes together: the smallest of 1, 2, 4, 8 that holds a KV head's, or 8.
std::int32_t heads_together(std::int32_t group) { return group == 1 ? 1 : group == 2 ? 2 : group <= 4 ? 4 : 8; }

template <class T, int HeadDim, int Group>
void start(cuda::stream_handle on, const decode_attention_args& args) {
  const kv_layout& layout = args.kv.layout;
  attention_shape s{};
  s.heads = args.heads;
  s.kv_heads = layout.kv_heads;
  s.group = args.heads / layout.kv_heads;
  s.group_tiles = (s.group + Group - 1) / Group;
  s.block_size = layout.block_size;
  s.window = args.window;
  s.splits = args.splits;
  s.query_stride = args.query_stride;
  s.output_stride = args.output_stride;
  s.scale_log2 = args.scale * 1.4426950408889634F;
  const dim3 grid(static_cast<unsigned>(args.splits), static_cast<unsigned>(layout.kv_heads * s.group_tiles),
                  static_cast<unsigned>(args.rows));
  auto* counters = static_cast<std::uint32_t*>(args.workspace);
  auto* parts = reinterpret_cast<float*>(static_cast<std::byte*>(args.workspace) + decode_attention_counters(args.rows, args.heads));
  launch(on, {grid, warps * 32, 0, args.overlaps}, decode_kernel<T, HeadDim, Group>, s, static_cast<const T*>(args.query),
         static_cast<T*>(args.output), args.places, reinterpret_cast<const T*>(args.kv.data), counters, parts);
}

template <class T, int HeadDim>
void start_for_group(cuda::stream_handle on, const decode_attention_args& args) {
  switch (heads_together(args.heads / args.kv.layout.kv_heads)) {
    case 1:
      return start<T, HeadDim, 1>(on, args);
    case 2:
      return start<T, HeadDim, 2>(on, args);
    case 4:
      return start<T, HeadDim, 4>(on, args);
    default:
      return start<T, HeadDim, 8>(on, args);
  }
}

} // namespace

std::size_t decode_attention_counters(std::int32_t rows, std::int32_t heads) {
  return (static_cast<std::size_t>(rows) * static_cast<std::size_t>(heads) * 4 + 255) / 256 * 256;
}

std::size_t decode_attention_workspace(std::int32_t rows, std::int32_t heads, std::int32_t head_dim, std::int32_t splits) {
  // A KV head's tiles of heads may be filled up to twice their number (3 heads in a tile of 4, 9 in two of 8).
  const std::size_t parts = static_cast<std::size_t>(rows) * static_cast<std::size_t>(2 * heads) * static_cast<std::size_t>(splits);
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
      start_for_group<T, 64>(on, args);
    else
      start_for_group<T, 128>(on, args);
  });
}

} // namespace troupe::gpu
