// Products of 1 to 8 rows: W goes from memory into registers in the shape that the matrix instruction wants, several groups ahead.
//
// A warp's item is 16 rows of W (8 pairs) and 32 columns: lane 4 g + t holds columns 8 t .. 8 t + 7 of both rows of pair g, 16 bytes each.
// The instruction takes them as columns 2t, 2t+1, 2t+8, 2t+9 of its own order, twice; a sum does not mind, as x is read the same way.
// A group is 8 neighbouring items, 256 columns. The warps of a block share the columns of a tile, the blocks the tiles.
#include <algorithm>
#include <cstdlib>

#include "kernels/launch.cuh"
#include "kernels/linear_paths.cuh"
#include "kernels/mbarrier.cuh"
#include "kernels/mma.cuh"

namespace troupe::gpu {
namespace {

constexpr int warps = 8, threads = warps * 32;
constexpr int items = 8;                  // of a group
constexpr int group_columns = items * 32; // of a warp
constexpr int step_columns = warps * group_columns;
constexpr int x_pitch = group_columns * 2 + 64; // bytes from row to row of a slot of x: pairs of rows lie in other banks
constexpr std::size_t shared_for_x = 76 * 1024; // so that two kernels fit on a multiprocessor

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
  std::int32_t ask_late; // groups a warp has yet to fetch when the next kernel is asked for
  float epsilon;
};

// Where a warp's next group of W is: block's tiles k, k + 1 (when together), at step s.
template <class T>
class group_cursor {
 public:
  __device__ group_cursor(const stream_shape& s, std::int32_t tiles, std::int32_t column, std::int32_t lane)
      : s_(s), tiles_(tiles), column_(column + lane % 4 * 8), g_(lane / 4) {
    aim();
  }
  __device__ bool done() const { return k_ >= tiles_; }
  // Groups left, this one included.
  __device__ std::int32_t left() const { return (tiles_ - k_) * s_.steps; }
  __device__ void fetch(int i, uint4 (&w)[2]) const {
    const std::int32_t column = column_ + step_ * step_columns;
    w[0] = uint4{}, w[1] = uint4{};
    if (!done() && column + i * 32 < s_.columns) {
      w[0] = load(first_ + i * 32);
      w[1] = load(second_ + i * 32);
    }
  }
  __device__ void advance() {
    if (++j_ == s_.together || k_ + j_ >= tiles_) {
      j_ = 0;
      if (++step_ == s_.steps) step_ = 0, k_ += s_.together;
    }
    aim();
  }

 private:
  __device__ static uint4 load(const T* from) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
    return v;
  }
  __device__ void aim() {
    const std::int32_t tile = static_cast<std::int32_t>(blockIdx.x + (k_ + j_) * gridDim.x);
    const std::int32_t row = first_row_of(tile * 8 + g_, s_.distance);
    const T* const weight = static_cast<const T*>(s_.weight) + column_ + step_ * step_columns;
    first_ = weight + std::int64_t{min(row, s_.last_row)} * s_.columns;
    second_ = weight + std::int64_t{min(row + s_.distance, s_.last_row)} * s_.columns;
  }

  const stream_shape& s_;
  const std::int32_t tiles_, column_, g_;
  std::int32_t k_ = 0, j_ = 0, step_ = 0;
  const T *first_, *second_;
};

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
  __device__ const std::byte* norm(std::int32_t step) const { return norm_ + step * group_columns * 2; }

  // Before the previous kernel's results are there.
  __device__ void prepare() {
    if (s_.columns % step_columns != 0) { // what no copy fills is multiplied by zeros and must not be NaN
      for (std::int32_t i = lane_; i < s_.slots * s_.rows * x_pitch / 16; i += 32) reinterpret_cast<uint4*>(slots_)[i] = uint4{};
      if (s_.norm_weight != nullptr) {
        for (std::int32_t i = lane_; i < s_.steps * group_columns / 8; i += 32) reinterpret_cast<uint4*>(norm_)[i] = uint4{};
      }
      fence_for_copies();
    }
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
  __device__ void wait_for_norm() const {
    if (s_.norm_weight != nullptr) mbarrier_wait(barriers_ + s_.slots, 0);
  }

 private:
  const stream_shape& s_;
  std::byte *slots_, *norm_;
  std::uint64_t* barriers_;
  std::int32_t column_, lane_;
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

// sums: [pair's half][row of x 2t, 2t + 1] of pair g.
template <class T>
__device__ __forceinline__ void multiply(float (&sums)[4], const uint4 (&w)[2], const uint4& x) {
  mma_m16n8k16<T>(sums, w[0].x, w[1].x, w[0].y, w[1].y, x.x, x.y);
  mma_m16n8k16<T>(sums, w[0].z, w[1].z, w[0].w, w[1].w, x.z, x.w);
}

struct block_state {
  float partial[2][warps][2][stream_rows][8]; // two buffers: one tile's sums are read while the next one's are written
  float squares[stream_rows][warps];
};

template <class T, class Epilogue>
__global__ void __launch_bounds__(threads, 2)
    stream_kernel(const __grid_constant__ stream_shape s, const __grid_constant__ Epilogue epilogue) {
  extern __shared__ __align__(128) std::byte shared[]; // slots of x by warp, norm weights by warp, barriers by warp
  __shared__ block_state state;
  const std::int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const std::int32_t slot_bytes = s.slots * s.rows * x_pitch, norm_bytes = s.norm_weight != nullptr ? s.steps * group_columns * 2 : 0;
  std::byte* const norms = shared + warps * slot_bytes;
  x_slots x(s, shared + warp * slot_bytes, norms + warp * norm_bytes,
            reinterpret_cast<std::uint64_t*>(norms + warps * norm_bytes) + warp * (s.slots + 1), warp * group_columns, lane);
  const std::int32_t tiles = (s.tiles - static_cast<std::int32_t>(blockIdx.x) + static_cast<std::int32_t>(gridDim.x) - 1) /
                             static_cast<std::int32_t>(gridDim.x); // of this block
  group_cursor<T> next(s, tiles, warp * group_columns, lane);
  uint4 w[items][2];
#pragma unroll
  for (int i = 0; i < items; ++i) next.fetch(i, w[i]);
  next.advance();
  x.prepare();
  x.wait_for_norm();
  wait_for_previous();
  bool asked = false;
  std::int32_t fetched = 0; // steps of x
  const std::int32_t passes = (tiles + s.together - 1) / s.together, wanted = s.slots == s.steps ? s.steps : passes * s.steps;
  for (; fetched < s.slots; ++fetched) x.fetch(fetched % s.steps, fetched);

  const std::int32_t row = threadIdx.x / 8;
  std::int32_t slot = 0, buffer = 0;
  std::uint32_t parity = 0;
  float squares = 0;
  for (std::int32_t k = 0; k < tiles; k += s.together) {
    decltype(epilogue.early(0, 0)) early[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const std::int32_t tile = static_cast<std::int32_t>(blockIdx.x + (k + j) * gridDim.x);
      if (row < s.rows && j < s.together && k + j < tiles) early[j] = epilogue.early(row, tile * 8 + threadIdx.x % 8);
    }
    float sums[2][4] = {};
    for (std::int32_t step = 0; step < s.steps; ++step) {
      if (k == 0 || s.slots < s.steps) x.wait(slot, parity);
      const std::byte* const piece = x.slot(slot) + g * x_pitch + t * 16;
      const std::byte* const factor = x.norm(step) + t * 16;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if (j >= s.together || k + j >= tiles) break;
        if (!asked && next.left() <= s.ask_late) let_next_start(), asked = true;
#pragma unroll
        for (int i = 0; i < items; ++i) {
          uint4 v{};
          if (g < s.rows) v = *reinterpret_cast<const uint4*>(piece + i * 64);
          if (s.norm_weight != nullptr) {
            const float square = scale_by<T>(v, *reinterpret_cast<const uint4*>(factor + i * 64));
            if (k == 0 && j == 0) squares += square;
          }
          multiply<T>(sums[j], w[i], v);
          next.fetch(i, w[i]);
        }
        next.advance();
      }
      if (fetched < wanted) {
        __syncwarp();
        x.fetch(fetched % s.steps, slot);
        ++fetched;
      }
      if (++slot == s.slots) slot = 0, parity ^= 1;
    }
    if (k == 0 && s.norm_weight != nullptr) {
      squares += __shfl_xor_sync(0xffffffffU, squares, 1);
      squares += __shfl_xor_sync(0xffffffffU, squares, 2);
      if (t == 0) state.squares[g][warp] = squares;
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      if (j >= s.together || k + j >= tiles) break;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        state.partial[buffer][warp][half][2 * t][g] = sums[j][2 * half];
        state.partial[buffer][warp][half][2 * t + 1][g] = sums[j][2 * half + 1];
      }
      __syncthreads();
      if (row < s.rows) {
        const std::int32_t c = threadIdx.x % 8;
        float first = 0, second = 0;
#pragma unroll
        for (int i = 0; i < warps; ++i) first += state.partial[buffer][i][0][row][c], second += state.partial[buffer][i][1][row][c];
        if (s.norm_weight != nullptr) {
          float sum = 0;
          for (int i = 0; i < warps; ++i) sum += state.squares[row][i];
          const float scale = rsqrtf(sum / static_cast<float>(s.columns) + s.epsilon);
          first *= scale, second *= scale;
        }
        const std::int32_t tile = static_cast<std::int32_t>(blockIdx.x + (k + j) * gridDim.x);
        epilogue.finish(row, tile * 8 + c, early[j], first, second);
      }
      buffer ^= 1;
    }
  }
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
  const std::size_t slot_bytes = static_cast<std::size_t>(warps * args.rows) * x_pitch;
  const bool stays = static_cast<std::size_t>(s.steps) * slot_bytes <= shared_for_x;
  s.slots = stays ? s.steps : static_cast<std::int32_t>(shared_for_x / slot_bytes);
  s.together = stays ? 1 : 2;
  static const int ask_late = std::getenv("ASK_LATE") != nullptr ? std::atoi(std::getenv("ASK_LATE")) : 1;
  s.ask_late = ask_late;
  const std::size_t norm_bytes = args.norm_weight == nullptr ? 0 : static_cast<std::size_t>(s.steps) * step_columns * 2;
  const std::size_t shared =
      static_cast<std::size_t>(s.slots) * slot_bytes + norm_bytes + static_cast<std::size_t>(warps * (s.slots + 1)) * 8;
  const auto grid = static_cast<unsigned>(std::min(s.tiles, multiprocessors()));
  launch(on, {grid, threads, shared, args.overlaps}, stream_kernel<T, Epilogue>, s, epilogue);
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
