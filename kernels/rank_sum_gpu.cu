#include "kernels/rank_sum_gpu.hpp"

#include <algorithm>

#include "kernels/half_types.cuh"
#include "kernels/launch.cuh"

namespace troupe::gpu {
namespace {

constexpr const char* op = "sum_over_ranks";
constexpr unsigned norm_threads = 512, flat_threads = 128;
constexpr std::uint32_t vacant = 0x80008000U;      // two zeros of negative sign, in both types; data has zeros of positive sign instead
constexpr std::uint32_t looks_between_asks = 2048; // at own memory, before the host is asked whether to give up: about a millisecond

struct sum_shape {
  const uint4* part;
  const uint4* residual;
  uint4* sum;
  const uint4* norm_weight;
  uint4* normed;
  std::int32_t pieces; // of 16 bytes, in a block: a row where there is a norm
  std::int32_t all;    // pieces of the whole call
  float columns, epsilon;
  rank_windows windows;
};

__device__ __forceinline__ uint4 look_at(const uint4* from) {
  uint4 v;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from) : "memory");
  return v;
}

__device__ __forceinline__ void put(uint4* to, const uint4& v) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

__device__ __forceinline__ bool has_come(const uint4& v) { return v.x != vacant && v.y != vacant && v.z != vacant && v.w != vacant; }

__device__ __forceinline__ uint4 never_vacant(uint4 v) {
  if (v.x == vacant) v.x = 0;
  if (v.y == vacant) v.y = 0;
  if (v.z == vacant) v.z = 0;
  if (v.w == vacant) v.w = 0;
  return v;
}

// Where in a window the pieces of rank `from` lie.
__device__ __forceinline__ uint4* pieces_of(const rank_windows& w, int window, std::uint32_t buffer, int from) {
  const std::size_t slot = static_cast<std::size_t>(buffer) * static_cast<std::size_t>(w.size) + static_cast<std::size_t>(from);
  return reinterpret_cast<uint4*>(w.of_rank[window] + slot * w.capacity);
}

template <class T>
__device__ __forceinline__ void add(float (&sums)[8], const uint4& piece) {
  const auto* const values = reinterpret_cast<const T*>(&piece);
#pragma unroll
  for (int e = 0; e < 8; ++e) sums[e] += to_float(values[e]);
}

template <class T>
__device__ __forceinline__ uint4 rounded(const float (&sums)[8]) {
  return {pair_of<T>(sums[0], sums[1]), pair_of<T>(sums[2], sums[3]), pair_of<T>(sums[4], sums[5]), pair_of<T>(sums[6], sums[7])};
}

// A call on one thread's behalf: what the peers send for one piece. Size: ranks at most.
template <class T, int Size>
class mailbox {
 public:
  __device__ mailbox(const rank_windows& w, std::uint32_t buffer, bool ended) : w_(w), buffer_(buffer), ended_(ended) {}

  __device__ void send(std::int32_t at, const uint4& mine) const {
    if (ended_) return;
#pragma unroll
    for (int step = 1; step < Size; ++step) { // the next rank first, so that not all write to the same one
      if (step >= w_.size) break;
      const int peer = w_.rank + step < w_.size ? w_.rank + step : w_.rank + step - w_.size;
      put(pieces_of(w_, peer, buffer_, w_.rank) + at, mine);
    }
  }

  // Waits until all peers' pieces have come, empties their places, and adds all up in the order of ranks. All lanes of a warp call it;
  // those without a piece (`there` is false) wait with the others.
  __device__ void receive(std::int32_t at, bool there, const uint4& mine, float (&sums)[8]) {
    uint4 got[Size];
#pragma unroll
    for (int r = 0; r < Size; ++r) got[r] = is_peer(r) && there ? uint4{vacant, vacant, vacant, vacant} : mine;
    for (std::uint32_t looks = 1; !ended_; ++looks) {
      bool all = true;
#pragma unroll
      for (int r = 0; r < Size; ++r) {
        if (there && is_peer(r) && !has_come(got[r])) got[r] = look_at(pieces_of(w_, w_.rank, buffer_, r) + at);
      }
#pragma unroll
      for (int r = 0; r < Size; ++r) all = all && (!there || !is_peer(r) || has_come(got[r]));
      if (__all_sync(0xffffffffU, all)) break;
      if (looks % looks_between_asks == 0) give_up_if_told();
    }
    if (!there) return;
#pragma unroll
    for (int r = 0; r < Size; ++r) {
      if (r >= w_.size) break;
      if (r != w_.rank && !ended_) put(pieces_of(w_, w_.rank, buffer_, r) + at, uint4{vacant, vacant, vacant, vacant});
      add<T>(sums, got[r]);
    }
  }

 private:
  __device__ bool is_peer(int r) const { return r < w_.size && r != w_.rank; }
  __device__ void give_up_if_told() {
    const std::uint32_t told = threadIdx.x % 32 == 0 ? *w_.given_up : 0U;
    if (__shfl_sync(0xffffffffU, told, 0) == 0) return;
    ended_ = true;
    *reinterpret_cast<volatile std::uint32_t*>(&w_.state->ended) = 1;
  }

  const rank_windows& w_;
  const std::uint32_t buffer_;
  bool ended_;
};

// The last block to have read how many calls there were counts this one.
__device__ void count_call(const rank_windows& w, std::uint32_t calls) {
  if (atomicInc(&w.state->arrived, gridDim.x - 1) != gridDim.x - 1) return;
  *reinterpret_cast<volatile std::uint32_t*>(&w.state->calls) = calls + 1;
}

// Each block has its own pieces: a row where there is a norm. Pieces: of a thread, at most.
template <class T, int Size, int Pieces, bool Normed>
__global__ void __launch_bounds__(Normed ? norm_threads : flat_threads) sum_kernel(const __grid_constant__ sum_shape s) {
  __shared__ float squares_of[norm_threads / 32];
  const std::int32_t first = static_cast<std::int32_t>(blockIdx.x) * s.pieces;
  const auto own = [&](int k) { return static_cast<std::int32_t>(threadIdx.x + k * blockDim.x); };
  const auto there = [&](int k) { return own(k) < s.pieces && first + own(k) < s.all; };
  uint4 mine[Pieces], weight[Pieces];
  let_next_start();
#pragma unroll
  for (int k = 0; k < Pieces; ++k) {
    if (Normed && there(k)) weight[k] = __ldg(s.norm_weight + own(k));
  }
  wait_for_previous();
  const std::uint32_t calls = __ldcg(&s.windows.state->calls);
  const bool ended = __ldcg(&s.windows.state->ended) != 0;
#pragma unroll
  for (int k = 0; k < Pieces; ++k) {
    if (there(k)) mine[k] = never_vacant(__ldcg(s.part + first + own(k)));
  }
  mailbox<T, Size> mail(s.windows, calls % 2, ended);
#pragma unroll
  for (int k = 0; k < Pieces; ++k) {
    if (there(k)) mail.send(first + own(k), mine[k]);
  }
  __syncthreads();
  if (threadIdx.x == 0) count_call(s.windows, calls);
  float squares = 0;
#pragma unroll
  for (int k = 0; k < Pieces; ++k) {
    float sums[8] = {};
    uint4 residual{};
    if (s.residual != nullptr && there(k)) residual = __ldcg(s.residual + first + own(k));
    mail.receive(first + own(k), there(k), mine[k], sums);
    if (!there(k)) continue;
    if (s.residual != nullptr) add<T>(sums, residual);
    mine[k] = rounded<T>(sums);
    s.sum[first + own(k)] = mine[k];
    if constexpr (Normed) {
      const auto* const values = reinterpret_cast<const T*>(&mine[k]);
#pragma unroll
      for (int e = 0; e < 8; ++e) squares += to_float(values[e]) * to_float(values[e]);
    }
  }
  if constexpr (Normed) {
    const int warps = static_cast<int>(blockDim.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    squares = warp_sum(squares);
    if (lane == 0) squares_of[threadIdx.x / 32] = squares;
    __syncthreads();
    const float scale = rsqrtf(warp_sum(lane < warps ? squares_of[lane] : 0.0F) / s.columns + s.epsilon);
#pragma unroll
    for (int k = 0; k < Pieces; ++k) {
      if (!there(k)) continue;
      const auto *const values = reinterpret_cast<const T*>(&mine[k]), *const factors = reinterpret_cast<const T*>(&weight[k]);
      float out[8];
#pragma unroll
      for (int e = 0; e < 8; ++e) out[e] = to_float(values[e]) * scale * to_float(factors[e]);
      s.normed[first + own(k)] = rounded<T>(out);
    }
  }
}

template <class T, int Size>
void start(cuda::stream_handle on, const rank_sum_args& args) {
  sum_shape s{};
  s.part = static_cast<const uint4*>(args.part);
  s.residual = static_cast<const uint4*>(args.residual);
  s.sum = static_cast<uint4*>(args.sum);
  s.norm_weight = static_cast<const uint4*>(args.norm_weight);
  s.normed = static_cast<uint4*>(args.normed);
  const std::int64_t row = args.columns / 8;
  s.all = static_cast<std::int32_t>(args.rows * row);
  s.columns = static_cast<float>(args.columns);
  s.epsilon = args.epsilon;
  s.windows = args.windows;
  if (args.norm_weight == nullptr) {
    s.pieces = flat_threads;
    const auto blocks = (static_cast<unsigned>(s.all) + flat_threads - 1) / flat_threads;
    return launch(on, launch_shape(blocks, flat_threads, 0, args.overlaps).split_for_rows(args.rows), sum_kernel<T, Size, 1, false>, s);
  }
  s.pieces = static_cast<std::int32_t>(row);
  const auto threads = static_cast<unsigned>(std::min<std::int64_t>(norm_threads, (row + 31) / 32 * 32));
  launch_shape shape(static_cast<unsigned>(args.rows), threads, 0, args.overlaps);
  shape.split_for_rows(args.rows);
  if (row <= norm_threads) return launch(on, shape, sum_kernel<T, Size, 1, true>, s);
  row <= 2 * norm_threads ? launch(on, shape, sum_kernel<T, Size, 2, true>, s) : launch(on, shape, sum_kernel<T, Size, 4, true>, s);
}

__global__ void __launch_bounds__(256) clear_kernel(uint4* window, std::size_t pieces, rank_sum_state* state) {
  const std::size_t first = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (std::size_t i = first; i < pieces; i += std::size_t{gridDim.x} * blockDim.x) window[i] = {vacant, vacant, vacant, vacant};
  if (first == 0) *state = {};
}

} // namespace

std::size_t rank_window_bytes(int size, std::size_t capacity) { return 2 * static_cast<std::size_t>(size) * capacity; }

void clear_rank_window(cuda::stream_handle on, const rank_windows& windows) {
  launch(on, {256, 256}, clear_kernel, reinterpret_cast<uint4*>(windows.of_rank[windows.rank]),
         rank_window_bytes(windows.size, windows.capacity) / sizeof(uint4), windows.state);
}

void sum_over_ranks(cuda::stream_handle on, const rank_sum_args& args) {
  const rank_windows& w = args.windows;
  require(w.size >= 2 && w.size <= most_summed_ranks && w.rank >= 0 && w.rank < w.size, op, "2 to 8 ranks");
  require(args.rows >= 1 && args.columns >= 8 && args.columns % 8 == 0, op, "at least 1 row, and columns in multiples of 8");
  require(args.columns <= static_cast<std::int64_t>(w.capacity / 2) / args.rows, op, "the rows do not fit the window");
  require(args.norm_weight == nullptr || args.columns <= most_normed_columns, op, "a norm of at most 16384 columns");
  require(are_wide({args.part, args.residual, args.sum, args.norm_weight, args.normed}) && w.capacity % 16 == 0, op, "on 16 bytes");
  with_half_type(args.type, op, [&]<class T>() {
    if (w.size == 2) return start<T, 2>(on, args);
    w.size <= 4 ? start<T, 4>(on, args) : start<T, 8>(on, args);
  });
}

} // namespace troupe::gpu
