// Sixteen positions of one KV head at a time: how they come into a warp's shared memory, and what its heads make of them.
#pragma once

#include "kernels/half_types.cuh"
#include "kernels/kept_load.cuh"
#include "kernels/mbarrier.cuh"
#include "kernels/mma.cuh"

namespace troupe::gpu {

constexpr int tile = 16;       // positions that a warp takes at once; they lie in one block of the cache
constexpr int group_heads = 8; // columns of the matrix instruction
constexpr float minus_infinity = -INFINITY;

template <class T>
struct kv_place {
  const T* kv;
  const std::int32_t* table; // of the row
  std::int32_t block_size, kv_heads, kv_head;
};

// A warp's tiles first, first + stride, ... < end, several under way. In shared memory keys are [HeadDim][16 positions] and values
// [16][HeadDim] in pieces of 16 bytes, moved among each other so that the eight rows of a matrix lie in different banks.
template <class T, int HeadDim, int Stages>
class tile_pipe {
 public:
  static constexpr int pieces = HeadDim * 2; // of the keys, and of the values
  static constexpr int stages = Stages;
  static constexpr int tile_bytes = 2 * pieces * 16;
  static constexpr int bytes = stages * tile_bytes;

  __device__ tile_pipe(const kv_place<T>& place, std::byte* shared, std::int32_t first, std::int32_t stride, std::int32_t end,
                       std::int32_t low, std::int32_t high, std::int32_t lane)
      : place_(place), shared_(shared), stride_(stride), end_(end), low_(low), high_(high), lane_(lane), next_(first) {
    look_up(first);
  }

  __device__ static int key_piece(int dim, int half) {
    const int i = 2 * dim + half;
    return i ^ (i >> 3 & 1);
  }
  __device__ static int value_piece(int position, int piece) { return pieces + position * (HeadDim / 8) + (piece ^ (position & 7)); }

  // Puts tiles below `limit` under way, as many as there are stages.
  __device__ void fill(std::int32_t limit) {
    while (issued_ < stages && next_ < min(limit, end_)) fetch();
  }
  // The oldest tile, once it is there for all lanes. fill(end) has been called.
  __device__ const std::byte* wait() {
    while (issued_ < stages) commit(); // empty groups: the count of those under way stays the same
    asm volatile("cp.async.wait_group %0;" ::"n"(stages - 1) : "memory");
    __syncwarp();
    return shared_ + stage_ * tile_bytes;
  }
  // All lanes are done with it: its place takes the next.
  __device__ void pass() {
    __syncwarp();
    --issued_;
    if (++stage_ == stages) stage_ = 0;
    if (next_ < end_) fetch();
  }
  __device__ void drain() const { asm volatile("cp.async.wait_all;" ::: "memory"); }

 private:
  // A lane knows the block of the tile that it is many tiles from here: 32 loads at once.
  __device__ void look_up(std::int32_t from) {
    looked_up_ = from;
    const std::int32_t at = from + lane_ * stride_;
    block_ = at < end_ ? load_kept(place_.table + at * tile / place_.block_size) : 0;
  }
  __device__ void commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
    ++issued_;
    if (++fill_stage_ == stages) fill_stage_ = 0;
  }
  __device__ void copy(int piece, const T* from, bool there) const {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared_ + fill_stage_ * tile_bytes + 16 * piece)),
                 "l"(from), "r"(there ? 16 : 0)
                 : "memory");
  }
  __device__ void fetch() {
    if (next_ >= looked_up_ + 32 * stride_) look_up(next_);
    const std::int64_t block = __shfl_sync(0xffffffffU, block_, (next_ - looked_up_) / stride_);
    const std::int32_t start = next_ * tile, inside = start % place_.block_size;
    const std::int64_t of_head = std::int64_t{HeadDim} * place_.block_size;
    const T* const keys = place_.kv + (block * place_.kv_heads + place_.kv_head) * 2 * of_head + inside;
    const T* const values = keys - inside + of_head + inside * HeadDim;
#pragma unroll
    for (int i = 0; i < pieces / 32; ++i) {
      const int dim = (i * 32 + lane_) / 2, half = lane_ & 1;
      copy(key_piece(dim, half), keys + dim * place_.block_size + 8 * half, true);
    }
#pragma unroll
    for (int i = 0; i < pieces / 32; ++i) { // values of no weight are zeros: what lies there was never written, or is another row's
      const int position = (i * 32 + lane_) / (HeadDim / 8), piece = lane_ % (HeadDim / 8);
      copy(value_piece(position, piece), values + position * HeadDim + 8 * piece, start + position >= low_ && start + position < high_);
    }
    next_ += stride_;
    commit();
  }

  const kv_place<T> place_;
  std::byte* const shared_;
  const std::int32_t stride_, end_, low_, high_, lane_;
  std::int32_t next_; // tile that is fetched next
  std::int32_t looked_up_ = 0, block_ = 0;
  int issued_ = 0, stage_ = 0, fill_stage_ = 0;
};

// The heads' queries as columns: heads from `live` on are zeros.
template <class T, int HeadDim>
struct query_fragments {
  std::uint32_t at[HeadDim / 16][2];

  __device__ query_fragments(const T* query, std::int32_t live, std::int32_t lane) {
    const std::int32_t g = lane / 4, t = lane % 4;
#pragma unroll
    for (int k = 0; k < HeadDim / 16; ++k) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
        at[k][i] = g < live ? *reinterpret_cast<const std::uint32_t*>(query + g * HeadDim + 16 * k + 8 * i + 2 * t) : 0U;
    }
  }
};

// What a warp knows of its heads: lane 4 g + t of heads 2t and 2t + 1: the largest score, the sum of weights (of this lane's positions),
// and weighted values of dimensions 16 m + g (heads 2t, 2t + 1), then 16 m + g + 8.
template <int HeadDim>
struct head_state {
  float top[2] = {minus_infinity, minus_infinity};
  float sum[2] = {};
  float mix[HeadDim / 16][4] = {};
};

__device__ __forceinline__ void load_transposed(std::uint32_t (&to)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

// Two neighbours of a row of an 8 x 8 matrix a lane; returns those of the transposed one.
template <class T>
__device__ __forceinline__ std::uint32_t transposed_pair(float first, float second) {
  const T pair[2] = {from_float<T>(first), from_float<T>(second)};
  std::uint32_t packed;
  __builtin_memcpy(&packed, pair, 4);
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(packed));
  return packed;
}

// Takes the tile at `kv_tile`, positions start .. start + 15, of which low .. high - 1 count (one at least), into `state`.
template <class Pipe, class T, int HeadDim>
__device__ __forceinline__ void take_tile(const std::byte* kv_tile, const query_fragments<T, HeadDim>& query, std::int32_t start,
                                          std::int32_t low, std::int32_t high, float scale_log2, std::int32_t lane,
                                          head_state<HeadDim>& state) {
  const std::uint32_t base = shared_address(kv_tile);
  const int r = lane % 8, right = lane / 8 & 1, lower = lane / 16; // which row of which of four matrices this lane points at
  float scores[2][4] = {};
#pragma unroll
  for (int k = 0; k < HeadDim / 16; ++k) {
    std::uint32_t a[4];
    load_transposed(a, base + 16 * Pipe::key_piece(16 * k + 8 * lower + r, right));
    mma_m16n8k16<T>(scores[k % 2], a[0], a[1], a[2], a[3], query.at[k][0], query.at[k][1]);
  }
  const std::int32_t position = start + lane / 4;
  const bool seen[2] = {position >= low && position < high, position + 8 >= low && position + 8 < high};
  float weights[2][2]; // [position, + 8][head]
  float top[2];
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    weights[0][c] = seen[0] ? (scores[0][c] + scores[1][c]) * scale_log2 : minus_infinity;
    weights[1][c] = seen[1] ? (scores[0][2 + c] + scores[1][2 + c]) * scale_log2 : minus_infinity;
    top[c] = fmaxf(state.top[c], fmaxf(weights[0][c], weights[1][c]));
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) top[c] = fmaxf(top[c], __shfl_xor_sync(0xffffffffU, top[c], distance));
  }
  if (__any_sync(0xffffffffU, top[0] > state.top[0] || top[1] > state.top[1])) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float shrink = exp2f(state.top[c] - top[c]);
      state.top[c] = top[c];
      state.sum[c] *= shrink;
#pragma unroll
      for (int m = 0; m < HeadDim / 16; ++m) state.mix[m][c] *= shrink, state.mix[m][2 + c] *= shrink;
    }
  }
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    weights[0][c] = exp2f(weights[0][c] - top[c]);
    weights[1][c] = exp2f(weights[1][c] - top[c]);
    state.sum[c] += weights[0][c] + weights[1][c];
  }
  const std::uint32_t b0 = transposed_pair<T>(weights[0][0], weights[0][1]), b1 = transposed_pair<T>(weights[1][0], weights[1][1]);
#pragma unroll
  for (int m = 0; m < HeadDim / 16; ++m) {
    std::uint32_t a[4];
    load_transposed(a, base + 16 * Pipe::value_piece(8 * lower + r, 2 * m + right));
    mma_m16n8k16<T>(state.mix[m], a[0], a[1], a[2], a[3], b0, b1);
  }
}

} // namespace troupe::gpu
