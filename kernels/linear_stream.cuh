// The parts of the kernel in linear_stream_gpu.cu, which tells what they make together.
#pragma once

#include "kernels/launch.cuh"
#include "kernels/linear_paths.cuh"
#include "kernels/mbarrier.cuh"
#include "kernels/mma.cuh"

namespace troupe::gpu::streamed {

constexpr int warps = 8, threads = warps * 32;
constexpr int registers_for = 384;        // threads: leaves registers for a block of attention beside one of these
constexpr int items = 8;                  // of a group
constexpr int group_columns = items * 32; // of a warp
constexpr int step_columns = warps * group_columns;
constexpr int x_pitch = group_columns * 2 + 64; // bytes from row to row of a slot of x: pairs of rows lie in other banks
constexpr int w_slots = 2;                      // groups of W that a warp has under way
constexpr int w_slot_bytes = 16 * group_columns * 2;
constexpr std::size_t w_bytes = std::size_t{warps} * w_slots * w_slot_bytes;
constexpr int buffers = 4;   // of sums: of two passes over x
constexpr int finishers = 2; // warps that finish a tile: 32 lanes for 8 pairs and up to 4 rows

struct stream_shape {
  const void* weight;
  const void* x;
  const void* norm_weight;
  std::int64_t x_stride;
  std::int32_t columns, rows;
  std::int32_t tiles; // of 8 pairs
  std::int32_t last_row, distance;
  std::int32_t steps;    // of step_columns
  std::int32_t slots;    // of x that a warp has: `steps` when x stays, else a ring
  std::int32_t together; // tiles that pass over x side by side: 1 when it stays, else 2
  float epsilon;
};

// A warp's groups of W on their way: of the block's tiles k, k + 1 (when together), step by step.
template <class T>
class w_pipe {
 public:
  __device__ w_pipe(const stream_shape& s, std::byte* slots, std::int32_t tiles, std::int32_t column, std::int32_t lane)
      : s_(s),
        slots_(slots),
        tiles_(tiles),
        column_(column + lane * 8),
        lane_(lane),
        to_(shared_address(slots) + lane * 16),
        from_(lane / 4 * 512 + lane % 4 * 16) {
    aim();
  }

  __device__ bool done() const { return k_ >= tiles_; }
  // The next group into the slot whose last contents all lanes have read.
  __device__ void fetch() {
    if (!done()) {
      const std::int32_t column = column_ + step_ * step_columns;
      const bool inside = column < s_.columns; // else zeros
      const T* const from = static_cast<const T*>(s_.weight) + (inside ? column : 0);
      const std::uint32_t even = to_ + fill_ * w_slot_bytes, odd = even ^ 64;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::int32_t first = first_ + half * s_.distance;
        const T* const rows = from + std::int64_t{first} * s_.columns;
        const bool whole = first + 7 <= s_.last_row;
#pragma unroll
        for (int r = 0; r < 8; ++r) {
          const auto behind = static_cast<std::uint32_t>((whole ? r : max(0, min(r, s_.last_row - first))) * s_.columns);
          copy((r % 2 == 0 ? even : odd) + (8 * half + r) * 512, (whole || first <= s_.last_row) ? rows + behind : from, inside);
        }
      }
      if (++j_ == s_.together || k_ + j_ >= tiles_) {
        j_ = 0;
        if (++step_ == s_.steps) step_ = 0, k_ += s_.together;
      }
      if (s_.together > 1 || step_ == 0) aim();
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    if (++fill_ == w_slots) fill_ = 0;
  }
  // The oldest group, once all lanes see it; then its rows g and 8 + g of item i.
  __device__ void wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(w_slots - 1) : "memory");
    __syncwarp();
  }
  __device__ void read(int i, uint4 (&w)[2]) const {
    // The slot to be filled next is the oldest. Items of an odd row lie in twos the other way round.
    const std::byte* const row = slots_ + fill_ * w_slot_bytes + from_ + 64 * (i % 2 == 0 ? i + lane_ / 4 % 2 : i - lane_ / 4 % 2);
    w[0] = *reinterpret_cast<const uint4*>(row), w[1] = *reinterpret_cast<const uint4*>(row + 8 * 512);
  }

 private:
  // Rows are 512 bytes; pieces of 16 bytes of odd ones are moved by 64, so that lanes that read an even and an odd row together find them
  // in different banks.
  __device__ static void copy(std::uint32_t to, const T* from, bool inside) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(inside ? 16 : 0) : "memory");
  }
  __device__ void aim() { first_ = first_row_of(static_cast<std::int32_t>(blockIdx.x + (k_ + j_) * gridDim.x) * 8, s_.distance); }

  const stream_shape& s_;
  std::byte* const slots_;
  const std::int32_t tiles_, column_, lane_;
  const std::uint32_t to_, from_; // of this lane's pieces, in a slot
  std::int32_t k_ = 0, j_ = 0, step_ = 0;
  std::int32_t first_ = 0; // row of W
  int fill_ = 0;
};

template <class T>
using pair_of = std::conditional_t<std::is_same_v<T, bf16>, __nv_bfloat162, __half2>;

// x *= w, rounded; returns the sum of the squares that x had.
template <class T>
__device__ __forceinline__ float scale_by(uint4& x, const uint4& w) {
  auto* const values = reinterpret_cast<pair_of<T>*>(&x);
  const auto* const factors = reinterpret_cast<const pair_of<T>*>(&w);
  float squares = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 v = to_floats(values[i]);
    squares = fmaf(v.x, v.x, fmaf(v.y, v.y, squares));
    values[i] = __hmul2(values[i], factors[i]);
  }
  return squares;
}

// A warp's own columns of x, and of the norm's weight, in shared memory; bulk copies bring them.
class x_slots {
 public:
  __device__ x_slots(const stream_shape& s, std::byte* slots, std::byte* norm, std::uint64_t* barriers, std::int32_t column,
                     std::int32_t lane)
      : s_(s), slots_(slots), norm_(norm), barriers_(barriers), column_(column), lane_(lane) {}

  __device__ std::int32_t bytes_of(std::int32_t step) const {
    return max(0, min(group_columns, s_.columns - column_ - step * step_columns)) * 2;
  }
  __device__ const std::byte* slot(std::int32_t index) const { return slots_ + index * s_.rows * x_pitch; }

  // Before the previous kernel's results are there.
  __device__ void prepare() {
    if (lane_ == 0) {
      for (std::int32_t i = 0; i <= s_.slots; ++i) mbarrier_init(barriers_ + i, 1);
      fence_barrier_init();
    }
    __syncwarp();
    if (s_.norm_weight == nullptr) return;
    if (lane_ == 0) {
      std::int32_t bytes = 0;
      for (std::int32_t i = 0; i < s_.steps; ++i) bytes += bytes_of(i);
      mbarrier_expect(barriers_ + s_.slots, bytes);
    }
    __syncwarp();
    for (std::int32_t i = lane_; i < s_.steps; i += 32) {
      if (bytes_of(i) > 0)
        bulk_copy(norm_ + i * group_columns * 2, static_cast<const std::byte*>(s_.norm_weight) + 2 * (column_ + i * step_columns),
                  bytes_of(i), barriers_ + s_.slots);
    }
  }
  // Step `step` of x into slot `index`, whose last contents all lanes have read.
  __device__ void fetch(std::int32_t step, std::int32_t index) {
    const std::int32_t bytes = bytes_of(step);
    if (lane_ == 0) mbarrier_expect(barriers_ + index, bytes * s_.rows);
    __syncwarp();
    if (lane_ < s_.rows && bytes > 0) {
      const std::byte* from = static_cast<const std::byte*>(s_.x) + 2 * (lane_ * s_.x_stride + column_ + step * step_columns);
      bulk_copy(slots_ + (index * s_.rows + lane_) * x_pitch, from, bytes, barriers_ + index);
    }
  }
  __device__ void wait(std::int32_t index, std::uint32_t parity) const { mbarrier_wait(barriers_ + index, parity); }
  __device__ void wait_for_norm() const { mbarrier_wait(barriers_ + s_.slots, 0); }
  // What has arrived in a slot is multiplied by the norm's weight; `squares` grow by this lane's part of what was there before.
  template <class T>
  __device__ void scale(std::int32_t step, std::int32_t index, float (&squares)[stream_rows]) {
    if (lane_ * 16 < bytes_of(step)) {
      const uint4 factor = *reinterpret_cast<const uint4*>(norm_ + step * group_columns * 2 + lane_ * 16);
      std::byte* const at = slots_ + index * s_.rows * x_pitch + lane_ * 16;
      uint4 v[stream_rows];
#pragma unroll
      for (int row = 0; row < stream_rows; ++row) {
        if (row < s_.rows) v[row] = *reinterpret_cast<const uint4*>(at + row * x_pitch);
      }
#pragma unroll
      for (int row = 0; row < stream_rows; ++row) {
        if (row >= s_.rows) break;
        squares[row] += scale_by<T>(v[row], factor);
        *reinterpret_cast<uint4*>(at + row * x_pitch) = v[row];
      }
    }
    __syncwarp();
  }

 private:
  const stream_shape& s_;
  std::byte *slots_, *norm_;
  std::uint64_t* barriers_;
  std::int32_t column_, lane_;
};

// sums: [pair's half][row of x 2t, 2t + 1] of pair g.
template <class T>
__device__ __forceinline__ void multiply(float (&sums)[4], const uint4 (&w)[2], const uint4& x) {
  mma_m16n8k16<T>(sums, w[0].x, w[1].x, w[0].y, w[1].y, x.x, x.y);
  mma_m16n8k16<T>(sums, w[0].z, w[1].z, w[0].w, w[1].w, x.z, x.w);
}

struct block_state {
  float sums[buffers][warps][2][stream_rows][8];
  float squares[warps][stream_rows];
  std::uint64_t written[buffers], taken[buffers]; // phases: by all threads; by the finishers
};

// What tile n of a block's becomes: written by each warp, finished by two of them.
template <class T, class Epilogue>
class tile_sums {
 public:
  __device__ tile_sums(const stream_shape& s, const Epilogue& epilogue, block_state& state)
      : s_(s),
        epilogue_(epilogue),
        state_(state),
        warp_(threadIdx.x / 32),
        lane_(threadIdx.x % 32),
        row_(warp_ % finishers * 4 + lane_ / 8) {}

  __device__ static void prepare(block_state& state) {
    for (int i = 0; i < buffers; ++i) mbarrier_init(state.written + i, threads), mbarrier_init(state.taken + i, 32 * finishers);
    fence_barrier_init();
  }
  // The previous kernel is done.
  __device__ void begin() {
    if (row_ < s_.rows) row_state_ = epilogue_.of(row_);
  }
  // Loads of tile n are under way from here on, if this warp is to finish it.
  __device__ void expect(std::int32_t n) {
    if (finishes(n)) early_ = epilogue_.early(row_state_, pair_of_tile(n));
  }
  __device__ void write(std::int32_t n, const float (&sums)[4]) {
    const std::int32_t buffer = n % buffers, g = lane_ / 4, t = lane_ % 4;
    if (n >= buffers) mbarrier_wait(state_.taken + buffer, n / buffers - 1 & 1);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      state_.sums[buffer][warp_][half][2 * t][g] = sums[2 * half];
      state_.sums[buffer][warp_][half][2 * t + 1][g] = sums[2 * half + 1];
    }
    mbarrier_arrive(state_.written + buffer);
  }
  __device__ void finish(std::int32_t n) {
    if (warp_ / finishers != n % buffers) return;
    const std::int32_t buffer = n % buffers;
    mbarrier_wait(state_.written + buffer, n / buffers & 1);
    float first = 0, second = 0, squares = 0;
    if (row_ < s_.rows) {
#pragma unroll
      for (int i = 0; i < warps; ++i) {
        first += state_.sums[buffer][i][0][row_][lane_ % 8], second += state_.sums[buffer][i][1][row_][lane_ % 8];
        if (s_.norm_weight != nullptr) squares += state_.squares[i][row_];
      }
    }
    mbarrier_arrive(state_.taken + buffer);
    if (row_ >= s_.rows) return;
    const float scale = s_.norm_weight == nullptr ? 1.0F : rsqrtf(squares / static_cast<float>(s_.columns) + s_.epsilon);
    epilogue_.finish(row_state_, pair_of_tile(n), early_, first * scale, second * scale);
  }

 private:
  static_assert(warps == finishers * buffers);
  __device__ bool finishes(std::int32_t n) const { return warp_ / finishers == n % buffers && row_ < s_.rows; }
  __device__ std::int32_t pair_of_tile(std::int32_t n) const {
    return static_cast<std::int32_t>(blockIdx.x + n * gridDim.x) * 8 + lane_ % 8;
  }

  const stream_shape& s_;
  const Epilogue& epilogue_;
  block_state& state_;
  const std::int32_t warp_, lane_, row_;
  typename Epilogue::row_state row_state_{};
  decltype(std::declval<Epilogue>().early({}, 0)) early_{};
};

} // namespace troupe::gpu::streamed
