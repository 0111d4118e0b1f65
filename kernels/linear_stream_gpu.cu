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

#include "kernels/launch.cuh"
#include "kernels/linear_paths.cuh"
#include "kernels/mbarrier.cuh"
#include "kernels/mma.cuh"

namespace troupe::gpu {
namespace {

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

// The n-th step of a pass. Blocks begin at different ones, or all would read the same columns of all rows at a time, and those lie in some
// of the memory's channels alone.
__device__ __forceinline__ std::int32_t step_of(const stream_shape& s, std::int32_t k, std::int32_t n) {
  const std::int32_t step = n + static_cast<std::int32_t>(blockIdx.x + k) % s.steps;
  return step < s.steps ? step : step - s.steps;
}

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
      const std::int32_t column = column_ + step_of(s_, k_, step_) * step_columns;
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
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(inside ? 16 : 0) : "memory");
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
  std::uint64_t written[buffers], taken[buffers]; // phases: by all warps; by the finishers
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
    for (int i = 0; i < buffers; ++i) mbarrier_init(state.written + i, warps), mbarrier_init(state.taken + i, finishers);
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
    __syncwarp();
    if (lane_ == 0) mbarrier_arrive(state_.written + buffer);
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
    __syncwarp();
    if (lane_ == 0) mbarrier_arrive(state_.taken + buffer);
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
#pragma unroll
  for (int i = 0; i < w_slots; ++i) w.fetch();
  x_slots x(s, slots + warp * slot_bytes, norms + warp * norm_bytes,
            reinterpret_cast<std::uint64_t*>(norms + warps * norm_bytes) + warp * (s.slots + 1), warp * group_columns, lane);
  x.prepare();
  if (threadIdx.x == 0) tile_sums<T, Epilogue>::prepare(state);
  __syncthreads();
  wait_for_previous();
  const bool x_stays = s.slots == s.steps;
  bool asked = false;
  std::int32_t fetched = 0; // steps of x
  const std::int32_t passes = (tiles + s.together - 1) / s.together, wanted = x_stays ? s.steps : passes * s.steps;
  for (; fetched < s.slots; ++fetched) x.fetch(x_stays ? fetched : step_of(s, 0, fetched), fetched);
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
    for (std::int32_t n = 0; n < s.steps; ++n) {
      const std::int32_t step = step_of(s, k, n), x_slot = x_stays ? step : slot;
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
        x.fetch(step_of(s, fetched / s.steps * s.together, fetched % s.steps), slot);
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
