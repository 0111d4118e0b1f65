// Decode attention on the matrix units. Up to 8 heads that share a KV head are the columns, so the keys and values, which are most of the
// bytes, are read once: scores^T (16 positions x 8 heads) = K^T q^T, output^T (dimensions x 8 heads) = V^T weights^T.
#include <algorithm>
#include <bit>

#include "kernels/attention_gpu.hpp"
#include "kernels/attention_tile.cuh"
#include "kernels/cluster.cuh"
#include "kernels/kept_load.cuh"
#include "kernels/launch.cuh"
#include "kernels/linear_paths.cuh"

namespace troupe::gpu {
namespace {

constexpr const char* op = "decode attention";
// Warps of a block: as many as two blocks of a multiprocessor have; as leave room for a block of a product of one or two rows; or those of
// a block that has a multiprocessor for itself.
constexpr int few_warps = 4, some_warps = 5, many_warps = 8;
constexpr int max_splits = 16;   // blocks of a cluster
constexpr int least_share = 128; // positions of a block

struct attention_shape {
  std::int32_t heads, kv_heads, group, group_tiles; // heads per KV head, and how many tiles of 8 heads that makes
  std::int32_t block_size, window, splits, unsettled;
  std::int64_t query_stride, output_stride;
  float scale_log2; // scale * log2(e): weights are powers of two
};

// Dimensions of a head that are joined and sent together.
constexpr int four = 4;

// What the blocks of a cluster make of their shares: fours of a head's dimensions go round the blocks, each of which gets all shares of its
// own ones from all blocks, in the order of the blocks.
template <int HeadDim>
struct exchange {
  static constexpr int most_fours = group_heads * HeadDim / four;
  float4 mixed[most_fours + max_splits]; // [block that sent][four], as many fours as a block has at most
  float2 scale[most_fours + max_splits]; // likewise: the largest score and the sum of weights
  std::uint64_t arrived;
};

template <int HeadDim, int Warps>
struct shared_state {
  float top[Warps][group_heads], sum[Warps][group_heads];
  exchange<HeadDim> shares;
};

// A warp's weighted values by head, in a block's dynamic shared memory once its tiles are done.
template <int HeadDim, int Warps>
struct mixes {
  float of_warp[Warps * group_heads][HeadDim + 1]; // the last column keeps heads in different banks
};

template <int HeadDim, int Warps>
__device__ void publish_warp(const head_state<HeadDim>& state, std::int32_t warp, std::int32_t lane, shared_state<HeadDim, Warps>& shared,
                             mixes<HeadDim, Warps>& mix) {
  const std::int32_t g = lane / 4, t = lane % 4;
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    float sum = state.sum[c];
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) sum += __shfl_xor_sync(0xffffffffU, sum, distance);
    if (g == 0) shared.top[warp][2 * t + c] = state.top[c], shared.sum[warp][2 * t + c] = sum;
#pragma unroll
    for (int m = 0; m < HeadDim / 16; ++m) {
      mix.of_warp[warp * group_heads + 2 * t + c][16 * m + g] = state.mix[m][c];
      mix.of_warp[warp * group_heads + 2 * t + c][16 * m + g + 8] = state.mix[m][2 + c];
    }
  }
}

// What some positions make of four dimensions of a head.
struct head_part {
  float mixed[four] = {};
  float2 scale{minus_infinity, 0.0F}; // top, sum
};

// The warps' parts of dimensions d .. d + 3 of a head become the block's.
template <int HeadDim, int Warps>
__device__ __forceinline__ head_part join_warps(const shared_state<HeadDim, Warps>& shared, const mixes<HeadDim, Warps>& mix, int h,
                                                int d) {
  head_part part;
#pragma unroll
  for (int w = 0; w < Warps; ++w) part.scale.x = fmaxf(part.scale.x, shared.top[w][h]);
#pragma unroll
  for (int w = 0; w < Warps; ++w) {
    const float scale = shared.top[w][h] == minus_infinity ? 0.0F : exp2f(shared.top[w][h] - part.scale.x);
    part.scale.y += shared.sum[w][h] * scale;
#pragma unroll
    for (int k = 0; k < four; ++k) part.mixed[k] += mix.of_warp[w * group_heads + h][d + k] * scale;
  }
  return part;
}

// The blocks of a cluster, each with a share of the positions of `live` heads.
template <class T, int HeadDim>
class share_exchange {
 public:
  __device__ share_exchange(exchange<HeadDim>& mine, std::int32_t splits, std::int32_t live)
      : mine_(mine),
        splits_(splits),
        rank_(static_cast<std::int32_t>(blockIdx.x)),
        fours_(live * HeadDim / four),
        own_((fours_ - rank_ + splits - 1) / splits),
        pitch_((fours_ + splits - 1) / splits) {}

  // By all threads. The arrival may be relaxed: the fence publishes the barrier, and as it waits for this one arrival, which comes with the
  // number of bytes, its phase cannot end before, whatever has been sent by then.
  __device__ void prepare() {
    if (threadIdx.x == 0) {
      mbarrier_init(&mine_.arrived, 1);
      fence_barrier_init();
      mbarrier_expect(&mine_.arrived, static_cast<std::uint32_t>(splits_ * own_) * (sizeof(float4) + sizeof(float2)));
    }
    __syncwarp();
    cluster_arrive_relaxed();
  }
  // By all threads: the other blocks are ready too.
  __device__ void ready() { cluster_wait(); }
  __device__ void send_part(std::int32_t index, const head_part& part) {
    const std::int32_t to = index % splits_, at = rank_ * pitch_ + index / splits_;
    const std::uint32_t barrier = address_in(to, shared_address(&mine_.arrived));
    send(address_in(to, shared_address(mine_.mixed + at)), part.mixed, barrier);
    send(address_in(to, shared_address(mine_.scale + at)), part.scale, barrier);
  }
  // By all threads, after their send_part().
  __device__ void all_sent() {
    __syncwarp();
    cluster_arrive_relaxed();
  }
  // Joins the shares of this block's fours, in the order of the blocks.
  __device__ void finish(T* to) {
    for (std::int32_t i = threadIdx.x; i < own_ * four; i += blockDim.x) {
      wait_for_cluster(&mine_.arrived, 0);
      const std::int32_t at = i / four, k = i % four;
      float2 scales[max_splits];
      float parts[max_splits], top = minus_infinity, sum = 0, mixed = 0;
#pragma unroll
      for (int p = 0; p < max_splits; ++p) {
        if (p >= splits_) continue;
        scales[p] = mine_.scale[p * pitch_ + at];
        parts[p] = reinterpret_cast<const float*>(mine_.mixed + p * pitch_ + at)[k];
        top = fmaxf(top, scales[p].x);
      }
#pragma unroll
      for (int p = 0; p < max_splits; ++p) {
        if (p >= splits_ || scales[p].x == minus_infinity) continue; // no positions there
        const float scale = exp2f(scales[p].x - top);
        sum += scales[p].y * scale;
        mixed += parts[p] * scale;
      }
      to[(at * splits_ + rank_) * four + k] = from_float<T>(mixed / sum);
    }
    __syncwarp();
    cluster_wait(); // no block ends while others still send to it
  }

 private:
  exchange<HeadDim>& mine_;
  const std::int32_t splits_, rank_, fours_, own_, pitch_;
};

// One block: positions of share blockIdx.x of row blockIdx.z, for up to 8 heads of one KV head (blockIdx.y). Its warps take tiles
// in turn, each with its own tiles under way. The blocks of a row's heads are a cluster, whose shares are joined in their order.
template <class T, int HeadDim, int Stages, int Warps>
__global__ void __launch_bounds__(Warps * 32, Warps == many_warps ? 1 : 2)
    decode_kernel(const __grid_constant__ attention_shape s, const T* query, T* output, row_places places, const T* kv) {
  extern __shared__ __align__(128) std::byte dynamic[];
  __shared__ shared_state<HeadDim, Warps> shared;
  const std::int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = blockIdx.z;
  const std::int32_t kv_head = blockIdx.y / s.group_tiles, in_group = blockIdx.y % s.group_tiles * group_heads;
  const std::int32_t head = kv_head * s.group + in_group, live = min(group_heads, s.group - in_group);
  share_exchange<T, HeadDim> shares(shared.shares, s.splits, live);
  if (s.unsettled == 0) wait_for_previous();
  const std::int32_t position = load_kept(places.positions + row);
  if (s.splits > 1) shares.prepare();
  const std::int32_t high = position + 1, low = s.window > 0 ? max(0, high - s.window) : 0;
  const std::int32_t tiles = (high + tile - 1) / tile, first_tile = low / tile;
  const std::int32_t share = (tiles - first_tile + s.splits - 1) / s.splits;
  const std::int32_t begin = first_tile + share * static_cast<std::int32_t>(blockIdx.x), end = min(tiles, begin + share);

  const kv_place<T> place{kv, places.block_tables + row * places.table_stride, s.block_size, s.kv_heads, kv_head};
  using tiles_under_way = tile_pipe<T, HeadDim, Stages>;
  tiles_under_way pipe(place, dynamic + warp * tiles_under_way::bytes, begin + warp, Warps, end, low, high, lane);
  constexpr bool early = Warps == some_warps;
  if (early) let_next_start(); // its blocks find no room before those of the kernel before this are done
  if (s.unsettled > 0) {
    pipe.fill((high - s.unsettled) / tile); // tiles whose last position is settled
    wait_for_previous();
  }
  if (!early) let_next_start();
  pipe.fill(end);
  query_fragments<T, HeadDim> q(query + row * s.query_stride + head * HeadDim, live, lane);
  head_state<HeadDim> state;
  for (std::int32_t at = begin + warp; at < end; at += Warps) {
    const std::byte* const kv_tile = pipe.wait();
    take_tile<tiles_under_way, T, HeadDim>(kv_tile, q, at * tile, low, high, s.scale_log2, lane, state);
    pipe.pass();
  }
  pipe.drain();
  __syncthreads(); // the tiles' place is free
  auto& mix = *reinterpret_cast<mixes<HeadDim, Warps>*>(dynamic);
  publish_warp(state, warp, lane, shared, mix);
  __syncthreads();
  T* const to = output + row * s.output_stride + head * HeadDim;
  if (s.splits > 1) shares.ready();
  for (int i = threadIdx.x; i < live * HeadDim / four; i += Warps * 32) {
    const head_part part = join_warps<HeadDim>(shared, mix, i / (HeadDim / four), i % (HeadDim / four) * four);
    if (s.splits > 1) {
      shares.send_part(i, part);
      continue;
    }
#pragma unroll
    for (int k = 0; k < four; ++k) to[i * four + k] = from_float<T>(part.mixed[k] / part.scale.y);
  }
  if (s.splits == 1) return;
  shares.all_sent();
  shares.finish(to);
}

template <class T, int HeadDim, int Stages, int Warps>
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
  constexpr std::size_t shared = std::max(std::size_t{Warps} * tile_pipe<T, HeadDim, Stages>::bytes, sizeof(mixes<HeadDim, Warps>));
  launch_shape how({grid, Warps * 32, shared, args.overlaps});
  how.split_for_rows(args.rows).cluster = static_cast<unsigned>(args.splits);
  launch(on, how, decode_kernel<T, HeadDim, Stages, Warps>, s, static_cast<const T*>(args.query), static_cast<T*>(args.output), args.places,
         reinterpret_cast<const T*>(args.kv.data));
}

std::int32_t units_of(std::int32_t rows, std::int32_t heads, std::int32_t kv_heads) {
  return rows * kv_heads * ((heads / kv_heads + group_heads - 1) / group_heads);
}

// Stages: tiles that each of few warps has under way, where there are more than gemv_rows rows.
template <class T, int HeadDim, int Stages>
void start_by_length(cuda::stream_handle on, const decode_attention_args& args) {
  const auto turn = [&](int warps) { return args.splits * warps * tile; }; // positions that the warps take at once
  const auto is_short = [&](int warps) { return args.longest > 0 && args.longest <= turn(warps); };
  if (args.rows <= gemv_rows) {
    constexpr int warps = HeadDim == 64 ? some_warps : few_warps;
    // Two tiles a warp under way are enough for the memory, and leave room for the blocks of the kernels before and behind.
    return is_short(warps) ? start<T, HeadDim, 1, warps>(on, args) : start<T, HeadDim, 2, warps>(on, args);
  }
  const bool alone = args.splits * units_of(args.rows, args.heads, args.kv.layout.kv_heads) <= multiprocessors();
  if (is_short(few_warps)) return start<T, HeadDim, 1, few_warps>(on, args);
  if (alone && (args.longest <= 0 || args.longest > 2 * turn(few_warps))) return start<T, HeadDim, Stages, many_warps>(on, args);
  start<T, HeadDim, Stages, few_warps>(on, args);
}

} // namespace

std::int32_t decode_attention_splits(std::int32_t rows, std::int32_t heads, std::int32_t kv_heads, std::int32_t longest) {
  const std::int32_t useful = std::min(multiprocessors() / units_of(rows, heads, kv_heads), longest / least_share);
  return static_cast<std::int32_t>(std::bit_floor(static_cast<unsigned>(std::clamp(useful, 1, max_splits))));
}

void decode_attention(cuda::stream_handle on, const decode_attention_args& args) {
  const kv_layout& layout = args.kv.layout;
  require(args.rows >= 1 && args.rows <= 65535 && args.splits >= 1 && args.splits <= max_splits &&
              std::has_single_bit(static_cast<unsigned>(args.splits)),
          op, "1 to 65535 rows; 1, 2, 4, 8 or 16 splits");
  require(layout.kv_heads > 0 && args.heads > 0 && args.heads % layout.kv_heads == 0, op, "heads are a multiple of the KV heads");
  require(layout.block_size > 0 && layout.block_size % tile == 0, op, "blocks hold a multiple of 16 positions");
  require(layout.head_dim == 64 || layout.head_dim == 128, op, "head_dim is 64 or 128");
  with_half_type(layout.type, op, [&]<class T>() {
    if (layout.head_dim == 64)
      start_by_length<T, 64, 6>(on, args);
    else
      start_by_length<T, 128, 3>(on, args);
  });
}

} // namespace troupe::gpu
