// The weight-streaming product. W lies in tiles of 16 rows, which lie in blocks of 32 columns, which are two halves of 8 rows with 16 bytes
// for each lane of a warp. A lane's 16 bytes are 8 neighbouring columns of one row, which the
// matrix instruction takes as the columns 2t, 2t+1, 2t+8, 2t+9 of its own order: a sum does not mind, as x is read the same way.
#pragma once

#include "kernels/half_types.cuh"
#include "kernels/launch.cuh"
#include "kernels/linear_gpu.hpp"

namespace troupe::gpu {

constexpr int linear_warps = 8;
constexpr int linear_threads = linear_warps * 32;
constexpr int block_columns = 32; // a block is 16 rows and 32 columns of W: 1 KiB
constexpr int portion = 4;        // blocks that a warp fetches at once
// Portions that each warp has under way: one row leaves room for two blocks on a multiprocessor, more do not.
template <int Rows>
constexpr int linear_slots = Rows == 1 ? 2 : 3;
constexpr int portion_pieces = portion * 64;         // of 16 bytes
constexpr int linear_round = linear_warps * portion; // blocks that the warps take per round
template <int Rows>
constexpr std::size_t ring_bytes = std::size_t{linear_warps} * linear_slots<Rows>* portion_pieces * 16;

struct linear_shape {
  const uint4* packed;
  std::int32_t tiles;        // of 16 rows of W
  std::int32_t blocks;       // of 32 columns
  std::int32_t phase_blocks; // columns of x that fit into shared memory at once: a multiple of linear_round, or all
  std::int32_t columns;
  std::int32_t rows;
  std::int32_t x_pitch; // 16-byte pieces from row to row of x in shared memory; 4 modulo 8, so that rows lie in other banks
};

// A warp's way to its share of W: portions arrive in its own part of shared memory by bulk copies, which lane 0 starts and which
// count down a barrier a slot. Portions: tile blockIdx.x, + gridDim.x, ..., in each warp, + linear_warps, ....
template <int Slots>
class weight_ring {
 public:
  __device__ weight_ring(const linear_shape& s, uint4* slots, std::uint64_t* barriers, std::int32_t warp, std::int32_t lane)
      : s_(s), slots_(slots), barriers_(barriers), lane_(lane), first_(warp), tile_(blockIdx.x), portion_(warp) {
    if (lane == 0) {
      for (int i = 0; i < Slots; ++i) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(barriers_ + i)) : "memory");
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
      for (int i = 0; i < Slots; ++i) fetch(i);
    }
    __syncwarp();
  }

  // The oldest portion, once it is there.
  __device__ const uint4* wait() const {
    std::uint32_t done = 0;
    while (done == 0) { // each try waits for a while by itself
      asm volatile("{\n.reg .pred p;\n mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p;\n}"
                   : "=r"(done)
                   : "r"(address(barriers_ + slot_)), "r"(parity_)
                   : "memory");
    }
    return slots_ + slot_ * portion_pieces;
  }
  // All lanes have read it: its slot takes the next one that is not under way yet.
  __device__ void pass() {
    __syncwarp();
    if (lane_ == 0) fetch(slot_);
    if (++slot_ == Slots) slot_ = 0, parity_ ^= 1;
  }

 private:
  template <class P>
  __device__ static std::uint32_t address(P* of_shared) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(of_shared));
  }

  __device__ void fetch(int slot) {
    const std::int32_t block = portion_ * portion;
    if (tile_ >= s_.tiles || block >= s_.blocks) return;
    const std::uint32_t bytes = min(portion, s_.blocks - block) * 1024U;
    const uint4* from = s_.packed + (static_cast<std::int64_t>(tile_) * s_.blocks + block) * 64;
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(barriers_ + slot)), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     address(slots_ + slot * portion_pieces)),
                 "l"(from), "r"(bytes), "r"(address(barriers_ + slot))
                 : "memory");
    portion_ += linear_warps;
    if (portion_ * portion >= s_.blocks) portion_ = first_, tile_ += static_cast<std::int32_t>(gridDim.x);
  }

  const linear_shape& s_;
  uint4* slots_;
  std::uint64_t* barriers_;
  std::int32_t lane_, first_;
  std::int32_t tile_, portion_; // fetched next
  int slot_ = 0;                // read next
  std::uint32_t parity_ = 0;
};

// sums (16 rows of x times 8 rows of W) += two steps of 16 columns. `low` and `high`: x of rows g and g + 8; g is lane / 4.
template <class T>
__device__ __forceinline__ void multiply(float (&sums)[4], const uint4& low, const uint4& high, const uint4& w) {
  const auto step = [&sums](std::uint32_t a0, std::uint32_t a1, std::uint32_t a2, std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
    if constexpr (std::is_same_v<T, bf16>) {
      asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                   : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                   : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    } else {
      asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                   : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                   : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    }
  };
  step(low.x, high.x, low.y, high.y, w.x, w.y);
  step(low.z, high.z, low.w, high.w, w.z, w.w);
}

// x *= w; returns the sum of the squares that x had.
template <class T>
__device__ __forceinline__ float scale_by(eight<T>& x, const eight<T>& w) {
  float squares = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float value = to_float(x.at[i]);
    squares += value * value;
    x.at[i] = from_float<T>(value * to_float(w.at[i]));
  }
  return squares;
}

// Brings columns first_block * 32 .. of x into shared memory, zeros behind the last column, times the norm's weight when there is one.
// `squares` [Rows][linear_warps] collects each row's sum of squares when `measure`.
template <class T, int Rows>
__device__ void fill_x(const linear_shape& s, const T* x, std::int64_t x_stride, const T* norm_weight, std::int32_t first_block,
                       bool measure, uint4* shared_x, float* squares) {
  constexpr int lanes = Rows == 1 ? linear_threads : 32; // that share a row
  constexpr int batch = 4;                               // pieces that a lane has in flight
  const std::int32_t pieces = 4 * min(s.phase_blocks, s.blocks - first_block);
  for (std::int32_t row = threadIdx.x / lanes; row < s.rows; row += linear_threads / lanes) {
    float sum = 0;
    for (std::int32_t start = threadIdx.x % lanes; start < pieces; start += batch * lanes) {
      eight<T> v[batch] = {}, w[batch] = {};
#pragma unroll
      for (int k = 0; k < batch; ++k) {
        const std::int32_t column = first_block * block_columns + 8 * (start + k * lanes);
        if (start + k * lanes >= pieces || column >= s.columns) continue;
        v[k] = load_eight(x + row * x_stride + column);
        if (norm_weight != nullptr) w[k] = load_eight(norm_weight + column);
      }
#pragma unroll
      for (int k = 0; k < batch; ++k) {
        if (norm_weight != nullptr) sum += scale_by(v[k], w[k]);
        if (start + k * lanes < pieces) store_eight(reinterpret_cast<T*>(shared_x + row * s.x_pitch + start + k * lanes), v[k]);
      }
    }
    sum = warp_sum(sum);
    if (measure && threadIdx.x % 32 == 0) squares[row * linear_warps + threadIdx.x / 32] += sum;
  }
}

// One block of the grid takes tiles blockIdx.x, + gridDim.x, ...; its warps share the columns of a tile. The first portions of W are
// fetched before the previous kernel's results are waited for. `epilogue(row, tile, c, first, second)` gets the sums of both halves' row c.
template <class T, int Rows, class Epilogue>
__global__ void __launch_bounds__(linear_threads, 2)
    linear_kernel(const __grid_constant__ linear_shape s, const T* x, std::int64_t x_stride, const T* norm_weight, float epsilon,
                  Epilogue epilogue) {
  extern __shared__ __align__(128) uint4 shared[]; // the warps' slots, then x
  __shared__ float partial[2][linear_warps][2][Rows][8];
  __shared__ float squares[Rows][linear_warps];
  __shared__ std::uint64_t barriers[linear_warps][linear_slots<Rows>];
  const std::int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  uint4* const shared_x = shared + ring_bytes<Rows> / sizeof(uint4);

  let_next_start();
  weight_ring<linear_slots<Rows>> ring(s, shared + warp * linear_slots<Rows> * portion_pieces, barriers[warp], warp, lane);
  for (int i = threadIdx.x; i < Rows * linear_warps; i += linear_threads) squares[i / linear_warps][i % linear_warps] = 0;
  wait_for_previous();

  int buffer = 0;
  for (std::int32_t tile = blockIdx.x; tile < s.tiles; tile += gridDim.x, buffer ^= 1) {
    const bool first_tile = tile == static_cast<std::int32_t>(blockIdx.x);
    float sums[2][4] = {};
    for (std::int32_t round = 0; round < s.blocks; round += linear_round) {
      const std::int32_t phase_start = round / s.phase_blocks * s.phase_blocks;
      if (round == phase_start && (first_tile || s.phase_blocks < s.blocks)) {
        __syncthreads(); // the last phase has been used
        fill_x<T, Rows>(s, x, x_stride, norm_weight, round, first_tile, shared_x, &squares[0][0]);
        __syncthreads();
      }
      const std::int32_t start = round + warp * portion;
      if (start >= s.blocks) continue;
      const uint4* w = ring.wait() + lane;
#pragma unroll
      for (int u = 0; u < portion; ++u) {
        if (start + u >= s.blocks) break;
        const uint4* piece = shared_x + (start + u - phase_start) * 4 + t;
        uint4 low{}, high{};
        if (g < s.rows) low = piece[g * s.x_pitch];
        if (Rows == 16 && g + 8 < s.rows) high = piece[(g + 8) * s.x_pitch];
        multiply<T>(sums[0], low, high, w[u * 64]);
        multiply<T>(sums[1], low, high, w[u * 64 + 32]);
      }
      ring.pass();
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float(*mine)[8] = partial[buffer][warp][half];
      if (g < Rows) mine[g][2 * t] = sums[half][0], mine[g][2 * t + 1] = sums[half][1];
      if constexpr (Rows == 16) mine[g + 8][2 * t] = sums[half][2], mine[g + 8][2 * t + 1] = sums[half][3];
    }
    __syncthreads(); // two buffers: the next tile's sums cannot reach what is read here before its own barrier
    const std::int32_t row = threadIdx.x / 8, c = threadIdx.x % 8;
    if (row < s.rows) {
      float first = 0, second = 0, square = 0;
#pragma unroll
      for (int i = 0; i < linear_warps; ++i) first += partial[buffer][i][0][row][c], second += partial[buffer][i][1][row][c];
      if (norm_weight != nullptr) {
        for (int i = 0; i < linear_warps; ++i) square += squares[row][i];
        const float scale = rsqrtf(square / static_cast<float>(s.columns) + epsilon);
        first *= scale, second *= scale;
      }
      epilogue(row, tile, c, first, second);
    }
  }
}

} // namespace troupe::gpu
