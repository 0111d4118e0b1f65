// Products of 1 to gemv_rows rows: each warp multiplies two rows of W at a time, as it loads them, on the matrix units, of which an eighth
// counts: ordinary arithmetic takes a microsecond for what a multiprocessor has under way, and a layer has four such products in a row.
//
// Eight pieces of 16 bytes a lane of both rows are under way all the time; a piece that was used asks for the one eight further on, which
// may belong to the warp's next two rows. The first are asked for before the previous kernel of a chain is done, and while they come they
// lie in the L1 cache, which is why it is left a third of the memory. The two blocks of a multiprocessor leave room for no other, unless W
// has so few rows that one is enough. Where two warps a pair of rows fill the blocks better, they share it, by groups of columns.
#include <algorithm>

#include "kernels/launch.cuh"
#include "kernels/linear_paths.cuh"
#include "kernels/mbarrier.cuh"
#include "kernels/mma.cuh"

namespace troupe::gpu {
namespace {

constexpr int warps = 8, blocks_together = 2; // of a block, of a multiprocessor
constexpr int items = 8;                      // pieces of a group
constexpr int item_columns = 32 * 8;          // of a warp's piece
constexpr int group_columns = items * item_columns;
// Of a block, beside x: squares, the sums of couples; and what CUDA takes.
constexpr std::size_t static_shared = gemv_rows * (warps * 32 * sizeof(float) + warps * sizeof(float2)),
                      other_shared = static_shared + 1024;

struct gemv_shape {
  const void* weight;
  const void* x;
  const void* norm_weight;
  std::int64_t x_stride;
  std::int32_t columns, rows;
  std::int32_t groups; // of group_columns, that make a row
  std::int32_t pairs, distance, last_row;
  std::int32_t split; // warps that share a pair: 1 or 2
  float epsilon;
  bool holds_next;
};

// 16 bytes that are read once; zeros unless `there`.
__device__ __forceinline__ uint4 load_streaming(const void* from, bool there) {
  uint4 value;
  asm volatile(
      "{\n\t"
      ".reg .pred there;\n\t"
      "setp.ne.s32 there, %5, 0;\n\t"
      "mov.b32 %0, 0;\n\t"
      "mov.b32 %1, 0;\n\t"
      "mov.b32 %2, 0;\n\t"
      "mov.b32 %3, 0;\n\t"
      "@there ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];\n\t"
      "}"
      : "=&r"(value.x), "=&r"(value.y), "=&r"(value.z), "=&r"(value.w)
      : "l"(from), "r"(static_cast<int>(there)));
  return value;
}

// 16 bytes to shared memory, zeros unless `there`; wait_for_pieces() waits for all that this thread asked for.
__device__ __forceinline__ void bring_piece(uint4* to, const uint4* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(there ? 16 : 0) : "memory");
}
__device__ __forceinline__ void wait_for_pieces() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Where a warp is in W: a group of columns of a pair of rows. It takes every split-th group, from `part` on, of every stride-th pair.
template <class T>
class group_cursor {
 public:
  __device__ group_cursor(const gemv_shape& s, std::int32_t pair, std::int32_t stride, std::int32_t part, std::int32_t lane)
      : s_(s), stride_(stride), part_(part), lane_(lane), pair_(pair), group_(part) {
    find_rows();
  }
  __device__ void advance() {
    if ((group_ += s_.split) < s_.groups) return;
    group_ = part_;
    pair_ += stride_;
    find_rows();
  }
  __device__ bool ended() const { return pair_ >= s_.pairs; }
  // This lane's piece i of both rows; zeros behind the end.
  __device__ __forceinline__ void load(int i, uint4 (&w)[2]) const {
    const std::int32_t column = group_ * group_columns + i * item_columns + lane_ * 8;
    const bool there = column < s_.columns && pair_ < s_.pairs;
    w[0] = load_streaming(first_ + column, there);
    w[1] = load_streaming(second_ + column, there);
  }

 private:
  __device__ void find_rows() {
    const std::int32_t row = first_row_of(min(pair_, s_.pairs - 1), s_.distance);
    const T* const weight = static_cast<const T*>(s_.weight);
    first_ = weight + std::int64_t{min(row, s_.last_row)} * s_.columns;
    second_ = weight + std::int64_t{min(row + s_.distance, s_.last_row)} * s_.columns;
  }

  const gemv_shape& s_;
  const std::int32_t stride_, part_, lane_;
  std::int32_t pair_, group_;
  const T *first_ = nullptr, *second_ = nullptr;
};

template <class T>
using pair_of = std::conditional_t<std::is_same_v<T, bf16>, __nv_bfloat162, __half2>;

// A thread's pieces of x, which go times the norm's weight to shared memory: by rows of whole groups, zeros behind the columns' end. The
// norm's weights are there already, where row 0 goes, put by the same thread.
template <class T, int Rows>
class x_pieces {
 public:
  __device__ x_pieces(const gemv_shape& s, uint4* shared) : s_(s), shared_(shared), pieces_(s.groups * group_columns / 8) {}

  __device__ bool done() const { return from_ >= pieces_; }
  __device__ void load() {
#pragma unroll
    for (int b = 0; b < batch; ++b) {
      const std::int32_t i = from_ + b * warps * 32;
#pragma unroll
      for (int r = 0; r < Rows; ++r) {
        const T* const row = static_cast<const T*>(s_.x) + min(r, s_.rows - 1) * s_.x_stride;
        x_[b][r] = i < s_.columns / 8 ? __ldcg(reinterpret_cast<const uint4*>(row) + i) : uint4{};
      }
    }
  }
  // Adds x's squares, row by row.
  __device__ void store(float (&squares)[Rows]) {
#pragma unroll
    for (int b = 0; b < batch; ++b) {
      const std::int32_t i = from_ + b * warps * 32;
      if (i >= pieces_) break;
      const uint4 factor = s_.norm_weight != nullptr ? shared_[i] : uint4{};
      const auto* const factors = reinterpret_cast<const pair_of<T>*>(&factor);
#pragma unroll
      for (int r = 0; r < Rows; ++r) {
        auto* const values = reinterpret_cast<pair_of<T>*>(&x_[b][r]);
        if (s_.norm_weight != nullptr) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const float2 v = to_floats(values[e]);
            squares[r] = fmaf(v.x, v.x, fmaf(v.y, v.y, squares[r]));
            values[e] = __hmul2(values[e], factors[e]);
          }
        }
        shared_[r * pieces_ + i] = x_[b][r];
      }
    }
    from_ += batch * warps * 32;
  }

 private:
  static constexpr int batch = 4 / Rows;
  const gemv_shape& s_;
  uint4* const shared_;
  const std::int32_t pieces_;
  std::int32_t from_ = threadIdx.x;
  uint4 x_[batch][Rows];
};

// What a warp makes of its pieces of two rows of W. Lanes 4g .. 4g + 3 hold 32 columns, chunk g, of both rows and of x. As matrices, the
// chunks of W's rows times those of x give all chunks by all chunks, of which each by its own counts: the diagonal.
template <class T>
class pair_sums {
 public:
  __device__ __forceinline__ void add(const uint4 (&w)[2], const uint4& x) {
    mma_m16n8k16<T>(even_, w[0].x, w[1].x, w[0].y, w[1].y, x.x, x.y);
    mma_m16n8k16<T>(odd_, w[0].z, w[1].z, w[0].w, w[1].w, x.z, x.w);
  }
  // Of both rows, chunk g for each of its four lanes.
  __device__ __forceinline__ void collect(std::int32_t lane, float& first, float& second) const {
    const std::int32_t g = lane / 4, has = lane - lane % 4 + g / 2; // the lane with column g of row g and of row g + 8
    first = __shfl_sync(0xffffffffU, g % 2 == 0 ? even_[0] + odd_[0] : even_[1] + odd_[1], has);
    second = __shfl_sync(0xffffffffU, g % 2 == 0 ? even_[2] + odd_[2] : even_[3] + odd_[3], has);
  }

 private:
  float even_[4] = {}, odd_[4] = {}; // two, so that one product need not wait for the one before
};

// A group times x, which holds its rows `pitch` apart. `Loads`: each piece that was used asks for the one in the cursor's group.
template <bool Loads, class T, int Rows>
__device__ __forceinline__ void take_group(const group_cursor<T>& next, uint4 (&w)[items][2], const uint4* x, std::int32_t pitch,
                                           pair_sums<T> (&sums)[Rows]) {
#pragma unroll
  for (int i = 0; i < items; ++i) {
#pragma unroll
    for (int r = 0; r < Rows; ++r) sums[r].add(w[i], x[r * pitch + i * 32]);
    if constexpr (Loads) next.load(i, w[i]);
  }
}

// Adds up the sums of the two warps of a couple, for the first of them. `parts` is used in turn, so that one barrier a time is enough.
template <int Rows>
class couple_sums {
 public:
  __device__ couple_sums(float2 (*parts)[warps / 2][Rows], std::int32_t couple) : parts_(parts), couple_(couple) {}

  __device__ void add(float& first, float& second, std::int32_t part, std::int32_t lane) {
    float2* const mine = parts_[turn_ ^= 1][couple_];
    if (part == 1 && lane < Rows) mine[lane] = {first, second};
    asm volatile("bar.sync %0, 64;" ::"r"(1 + couple_) : "memory");
    if (part == 0 && lane < Rows) first += mine[lane].x, second += mine[lane].y;
  }

 private:
  float2 (*const parts_)[warps / 2][Rows];
  const std::int32_t couple_;
  int turn_ = 0;
};

// Of a row of x by threads.
using square_sums = float4[warps * 32 / 4];

// Chunk by chunk as collect(): an eighth of a row's squares for each four lanes.
__device__ __forceinline__ float collect_squares(const square_sums& of_threads, std::int32_t lane) {
  const float4 a = of_threads[lane], b = of_threads[lane + 32];
  float sum = (a.x + a.y) + (a.z + a.w) + ((b.x + b.y) + (b.z + b.w));
  for (int distance = 1; distance < 4; distance *= 2) sum += __shfl_xor_sync(0xffffffffU, sum, distance);
  return sum;
}

// Adds up what the eight chunks have, for all lanes: all values at once, as each step is a long wait.
template <int Count>
__device__ __forceinline__ void add_chunks(float (&values)[Count]) {
#pragma unroll
  for (int distance = 4; distance < 32; distance *= 2) {
    float others[Count];
#pragma unroll
    for (int i = 0; i < Count; ++i) others[i] = __shfl_xor_sync(0xffffffffU, values[i], distance);
#pragma unroll
    for (int i = 0; i < Count; ++i) values[i] += others[i];
  }
}

template <class T, int Rows, class Epilogue>
__global__ void __launch_bounds__(warps * 32, blocks_together)
    gemv_kernel(const __grid_constant__ gemv_shape s, const __grid_constant__ Epilogue epilogue) {
  extern __shared__ uint4 x[]; // [Rows][groups][items][32]
  __shared__ square_sums squares_of[Rows];
  __shared__ float2 parts[2][warps / 2][Rows];
  const std::int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, team = warp / s.split, part = warp % s.split;
  // Neighbours go to different blocks, so that no block has more than a pair more than another.
  std::int32_t pair = team * gridDim.x + blockIdx.x;
  const std::int32_t stride = warps / s.split * gridDim.x, pieces = s.groups * group_columns / 8;
  if (s.norm_weight != nullptr) { // before W: behind it they would be as late as its last piece
    for (std::int32_t i = threadIdx.x; i < pieces; i += warps * 32) {
      const bool there = i < s.columns / 8;
      bring_piece(x + i, static_cast<const uint4*>(s.norm_weight) + (there ? i : 0), there);
    }
  }
  group_cursor<T> at(s, pair, stride, part, lane);
  uint4 w[items][2];
#pragma unroll
  for (int i = 0; i < items; ++i) at.load(i, w[i]);
  at.advance();
  if (!s.holds_next) let_next_start();
  wait_for_previous();
  if (s.holds_next) let_next_start();
  x_pieces<T, Rows> of_x(s, x);
  of_x.load();
  auto row_state = epilogue.of(min(lane, s.rows - 1)); // lane r finishes row r
  auto early = epilogue.early(row_state, min(pair, s.pairs - 1));
  float squares[Rows] = {};
  wait_for_pieces();
  for (of_x.store(squares); !of_x.done(); of_x.store(squares)) of_x.load();
#pragma unroll
  for (int r = 0; r < Rows; ++r) reinterpret_cast<float*>(squares_of[r])[threadIdx.x] = squares[r];
  __syncthreads();
  bool scaled = s.norm_weight == nullptr;
  float scale = 1.0F;
  couple_sums<Rows> couple(parts, team);
  while (pair < s.pairs) {
    pair_sums<T> sums[Rows];
    for (std::int32_t group = part; group < s.groups; group += s.split) {
      const uint4* const of_group = x + group * items * 32 + lane;
      if (at.ended()) {
        take_group<false>(at, w, of_group, pieces, sums);
      } else {
        take_group<true>(at, w, of_group, pieces, sums);
        at.advance();
      }
    }
    float totals[3 * Rows]; // first, second, squares
#pragma unroll
    for (int r = 0; r < Rows; ++r) {
      sums[r].collect(lane, totals[3 * r], totals[3 * r + 1]);
      totals[3 * r + 2] = scaled ? 0.0F : collect_squares(squares_of[r], lane); // here, because W's first pieces wait for none
    }
    add_chunks(totals);
    float first = 0, second = 0, square = 0;
#pragma unroll
    for (int r = 0; r < Rows; ++r) {
      if (lane == r) first = totals[3 * r], second = totals[3 * r + 1], square = totals[3 * r + 2];
    }
    if (!scaled) scale = rsqrtf(square / static_cast<float>(s.columns) + s.epsilon), scaled = true;
    if (s.split == 2) couple.add(first, second, part, lane);
    if (part == 0 && lane < s.rows) epilogue.finish(row_state, pair, early, first * scale, second * scale);
    pair += stride;
    if (pair < s.pairs) early = epilogue.early(row_state, pair);
  }
  if constexpr (std::is_same_v<Epilogue, logits_epilogue>) {
    if (part == 0 && lane < s.rows) epilogue.leave(row_state, team * gridDim.x + blockIdx.x);
  }
}

// How much of the rounds that `units` take on `workers` is work.
double used(std::int64_t units, std::int64_t workers) {
  return static_cast<double>(units) / static_cast<double>((units + workers - 1) / workers * workers);
}

// How the pairs are shared out.
struct gemv_plan {
  std::int32_t groups, split;
  unsigned grid;

  gemv_plan(const linear_args& args, row_pairs outputs)
      : groups(static_cast<std::int32_t>((args.columns + group_columns - 1) / group_columns)) {
    const int blocks = blocks_together * multiprocessors();
    const bool halves = groups % 2 == 0 && used(2 * outputs.pairs, blocks * warps) > 1.05 * used(outputs.pairs, blocks * warps);
    split = halves ? 2 : 1;
    // Where one block a multiprocessor has a warp for each pair, the other half is the next kernel's.
    const bool is_small = outputs.pairs * split <= multiprocessors() * warps;
    grid = static_cast<unsigned>(std::min(outputs.pairs, is_small ? multiprocessors() : blocks));
  }
};

template <class T, int Rows, class Epilogue>
void start_rows(cuda::stream_handle on, const linear_args& args, const gemv_shape& s, unsigned grid, const Epilogue& epilogue) {
  const std::size_t shared = static_cast<std::size_t>(Rows * s.groups) * group_columns * 2;
  launch_shape how(grid, warps * 32, shared, args.overlaps);
  how.spares_l1 = blocks_together * (shared + other_shared) <= sparing_shared;
  launch(on, how, gemv_kernel<T, Rows, Epilogue>, s, epilogue);
}

} // namespace

bool gemv_takes(const linear_args& args) {
  constexpr std::int64_t most = (227 * 1024 - static_cast<std::int64_t>(static_shared)) / (gemv_rows * 2); // of x in shared memory
  return args.rows <= gemv_rows && (args.columns + group_columns - 1) / group_columns * group_columns <= most;
}

std::int32_t gemv_finishers(const linear_args& args, row_pairs outputs) {
  const gemv_plan plan(args, outputs);
  return static_cast<std::int32_t>(plan.grid) * warps / plan.split;
}

template <class T, class Epilogue>
void start_gemv(cuda::stream_handle on, const linear_args& args, row_pairs outputs, const Epilogue& epilogue) {
  gemv_shape s{};
  s.weight = args.weight;
  s.x = args.x;
  s.norm_weight = args.norm_weight;
  s.x_stride = args.x_stride;
  s.columns = static_cast<std::int32_t>(args.columns);
  s.rows = args.rows;
  s.pairs = outputs.pairs;
  s.distance = outputs.distance;
  s.last_row = static_cast<std::int32_t>(args.out_rows - 1);
  s.epsilon = args.epsilon;
  s.holds_next = args.holds_next;
  const gemv_plan plan(args, outputs);
  s.groups = plan.groups;
  s.split = plan.split;
  args.rows == 1 ? start_rows<T, 1>(on, args, s, plan.grid, epilogue) : start_rows<T, gemv_rows>(on, args, s, plan.grid, epilogue);
}

template void start_gemv<bf16>(cuda::stream_handle, const linear_args&, row_pairs, const store_epilogue<bf16, bf16>&);
template void start_gemv<bf16>(cuda::stream_handle, const linear_args&, row_pairs, const store_epilogue<bf16, float>&);
template void start_gemv<bf16>(cuda::stream_handle, const linear_args&, row_pairs, const logits_epilogue&);
template void start_gemv<bf16>(cuda::stream_handle, const linear_args&, row_pairs, const swiglu_epilogue<bf16>&);
template void start_gemv<bf16>(cuda::stream_handle, const linear_args&, row_pairs, const qkv_epilogue<bf16>&);
template void start_gemv<f16>(cuda::stream_handle, const linear_args&, row_pairs, const store_epilogue<f16, f16>&);
template void start_gemv<f16>(cuda::stream_handle, const linear_args&, row_pairs, const store_epilogue<f16, float>&);
template void start_gemv<f16>(cuda::stream_handle, const linear_args&, row_pairs, const logits_epilogue&);
template void start_gemv<f16>(cuda::stream_handle, const linear_args&, row_pairs, const swiglu_epilogue<f16>&);
template void start_gemv<f16>(cuda::stream_handle, const linear_args&, row_pairs, const qkv_epilogue<f16>&);

} // namespace troupe::gpu
