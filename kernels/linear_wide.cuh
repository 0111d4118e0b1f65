// The parts of the kernel in linear_wide_gpu.cu, which tells what they make together.
#pragma once

#include <algorithm>

#include "kernels/cluster.cuh"
#include "kernels/cuda/linear_maps.hpp"
#include "kernels/launch.cuh"
#include "kernels/linear_paths.cuh"
#include "kernels/tensor_copies.cuh"
#include "kernels/wgmma.cuh"

namespace troupe::gpu::wide {

constexpr int group_rows = 64;                                    // of x, that a warp group multiplies
constexpr int groups = 2;                                         // of warps that multiply
constexpr int block_rows = groups * group_rows;                   // of x, that a tile of W meets at once
constexpr int consumers = 128 * groups, threads = consumers + 32; // and a warp that copies

// N rows of W make a tile. A cluster of two halves the tile's columns between its blocks, and then the rows of W that each one finishes.
template <int N, int Cluster>
struct tile_of {
  static constexpr int sixteens = N / 16;
  static constexpr int x_bytes = block_rows * box_columns * 2;
  static constexpr int stage_bytes = x_bytes + N * box_columns * 2;
  static constexpr int own = sixteens / Cluster;                                // sixteens of rows of W that a block finishes
  static constexpr int part_bytes = Cluster > 1 ? own * 2 * consumers * 16 : 0; // what the other block sends
  static constexpr int stages = (220 * 1024 - part_bytes) / stage_bytes;
  static constexpr int shared_bytes = stages * stage_bytes + part_bytes; // leaves room for a norm beside it
  static_assert((Cluster == 1 || Cluster == 2) && N % (16 * Cluster) == 0);
};

struct tile_shape {
  std::int32_t tiles, steps; // of box_columns in a tile
  std::int32_t rows;
  std::int32_t row_blocks;   // of block_rows each; a tile of W meets one after the other, so that W is read once
  std::int32_t inner_groups; // groups of 8 rows of W from a pair's first to its second
  std::int32_t box_groups;   // sixteens that one copy brings
  __device__ std::int32_t active_groups() const { return min((rows + group_rows - 1) / group_rows, groups); }
  // What a cluster takes at a time: a tile and a block of rows.
  __device__ std::int32_t units() const { return tiles * row_blocks; }
  __device__ std::int32_t tile(std::int32_t unit) const { return unit / row_blocks; }
  __device__ std::int32_t first_row(std::int32_t unit) const { return unit % row_blocks * block_rows; }
};

template <class Tile>
struct block_barriers {
  std::uint64_t full[Tile::stages], empty[Tile::stages];
  std::uint64_t part;  // the other block's sums of a tile are here
  std::uint64_t taken; // it has read what this block sent

  __device__ void init(std::int32_t active_groups) {
    for (int i = 0; i < Tile::stages; ++i) mbarrier_init(full + i, 1), mbarrier_init(empty + i, consumers / 32);
    mbarrier_init(&part, static_cast<std::uint32_t>(128 * active_groups));
    mbarrier_init(&taken, static_cast<std::uint32_t>(128 * active_groups));
    fence_barrier_init();
  }
};

// This block's steps of a tile.
template <int Cluster>
struct step_range {
  std::int32_t first, count;
  __device__ step_range(std::int32_t steps, std::int32_t rank)
      : first(steps * rank / Cluster), count(steps * (rank + 1) / Cluster - steps * rank / Cluster) {}
};

struct ring_place {
  int stage = 0;
  std::uint32_t parity = 0;
  template <int Stages>
  __device__ void next() {
    if (++stage == Stages) stage = 0, parity ^= 1;
  }
};

// What one warp does: brings W and x of all steps into the stages. A tile of W comes in several boxes, each by a lane of its own.
template <int N, int Cluster, bool Plain>
class copier {
 public:
  using tile = tile_of<N, Cluster>;

  __device__ copier(const tile_shape& s, const CUtensorMap& weight, const CUtensorMap& x, std::int32_t rank, std::byte* stages,
                    block_barriers<tile>& barriers)
      : s_(s),
        weight_(weight),
        x_(x),
        stages_(stages),
        barriers_(barriers),
        range_(s.steps, rank),
        lane_(static_cast<std::int32_t>(threadIdx.x) % 32) {}

  // W of the first stages before the previous kernel is done; x when it is; then the rest.
  __device__ void run() {
    const std::int32_t clusters = static_cast<std::int32_t>(gridDim.x) / Cluster, first = static_cast<std::int32_t>(blockIdx.x) / Cluster;
    const std::int32_t early = min(range_.count, tile::stages);
    aim(first);
    for (std::int32_t i = 0; i < early; ++i) copy_weight(i, i);
    wait_for_previous();
    for (std::int32_t i = 0; i < early; ++i) copy_x(i, i);
    ring_place at;
    for (std::int32_t unit = first; unit < s_.units(); unit += clusters) {
      if (unit > first) aim(unit);
      for (std::int32_t step = 0; step < range_.count; ++step, at.template next<tile::stages>()) {
        if (unit == first && step < early) continue;
        mbarrier_wait(barriers_.empty + at.stage, at.parity ^ 1);
        copy_weight(step, at.stage);
        copy_x(step, at.stage);
      }
    }
    let_next_start();
  }

 private:
  // Where this lane's box of a unit's tile lies, and its rows of x.
  __device__ void aim(std::int32_t unit) {
    const std::int32_t index = s_.tile(unit), sixteen = Plain ? 0 : lane_ * s_.box_groups, group = index * tile::sixteens + sixteen;
    x_row_ = s_.first_row(unit);
    has_box_ = Plain ? lane_ == 0 : sixteen < tile::sixteens;
    box_ = sixteen * 16 * box_columns * 2;
    if (Plain)
      row_ = index * N;
    else
      inner_ = group % s_.inner_groups, outer_ = group / s_.inner_groups;
  }
  __device__ void copy_weight(std::int32_t step, int stage) const {
    std::uint64_t* const barrier = barriers_.full + stage;
    if (lane_ == 0) mbarrier_expect(barrier, static_cast<std::uint32_t>((s_.active_groups() * group_rows + N) * box_columns * 2));
    __syncwarp();
    if (has_box_) {
      tensor_copy(stages_ + stage * tile::stage_bytes + tile::x_bytes + box_, weight_,
                  {(range_.first + step) * box_columns, row_, 0, inner_, outer_}, barrier);
    }
  }
  __device__ void copy_x(std::int32_t step, int stage) const {
    if (lane_ == 31) {
      tensor_copy(stages_ + stage * tile::stage_bytes, x_, {(range_.first + step) * box_columns, x_row_}, barriers_.full + stage);
    }
  }

  const tile_shape& s_;
  const CUtensorMap &weight_, &x_;
  std::byte* const stages_;
  block_barriers<tile>& barriers_;
  const step_range<Cluster> range_;
  const std::int32_t lane_;
  bool has_box_ = false;
  std::int32_t box_ = 0, row_ = 0, inner_ = 0, outer_ = 0, x_row_ = 0;
};

// A warp group's sums of its rows of x over this block's steps of a tile.
template <class T, int N, int Cluster>
class multiplier {
 public:
  using tile = tile_of<N, Cluster>;

  __device__ multiplier(const std::byte* stages, block_barriers<tile>& barriers, std::int32_t group, bool active)
      : address_(shared_address(stages)), barriers_(barriers), group_(group), active_(active) {}

  __device__ void run(std::int32_t steps, float (&sums)[N / 2]) {
    if (!active_) return pass_over(steps);
#pragma unroll
    for (float& sum : sums) sum = 0;
    keep_in_place(sums);
    int last = -1; // stage whose products are under way
    for (std::int32_t i = 0; i < steps; ++i) {
      mbarrier_wait(barriers_.full + at_.stage, at_.parity);
      const std::uint32_t x = address_ + at_.stage * tile::stage_bytes, weight = x + tile::x_bytes;
      wgmma_begin();
#pragma unroll
      for (int k = 0; k < box_columns / 16; ++k)
        wgmma<T, N>(sums, swizzled_matrix(x + group_ * group_rows * box_columns * 2 + 32 * k), swizzled_matrix(weight + 32 * k));
      wgmma_commit();
      wgmma_wait<1>();
      if (last >= 0) pass(last);
      last = at_.stage;
      at_.template next<tile::stages>();
    }
    wgmma_wait<0>();
    keep_in_place(sums);
    if (last >= 0) pass(last);
  }

 private:
  __device__ void pass(int stage) const {
    if (threadIdx.x % 32 == 0) mbarrier_arrive(barriers_.empty + stage);
  }
  __device__ void pass_over(std::int32_t steps) {
    for (std::int32_t i = 0; i < steps; ++i, at_.template next<tile::stages>()) {
      mbarrier_wait(barriers_.full + at_.stage, at_.parity);
      pass(at_.stage);
    }
  }

  const std::uint32_t address_;
  block_barriers<tile>& barriers_;
  const std::int32_t group_;
  const bool active_;
  ring_place at_;
};

// A thread's place in a tile: rows of x `row` and 8 behind it; of each sixteen rows of W pairs q and q + 1, q that of the first sixteen.
struct sums_place {
  std::int32_t row, q;
};

// Finishes up to Count sixteens of a thread's sums: what the epilogue needs is loaded at once.
template <int Count, class Epilogue>
class finisher {
 public:
  __device__ finisher(const Epilogue& epilogue, const typename Epilogue::row_state* states, std::int32_t rows, sums_place at,
                      std::int32_t count)
      : epilogue_(epilogue), states_(states), rows_(rows), at_(at) {
#pragma unroll
    for (int i = 0; i < Count; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (i < count && is_row(half)) early_[i][half] = epilogue.early_two(states[row_of(half)], at.q + 8 * i);
      }
    }
  }
  // `firsts` and `seconds` as the matrix instruction leaves them: row, q; row, q + 1; then the row 8 behind.
  __device__ void finish(int i, const float* firsts, const float* seconds) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (is_row(half)) {
        epilogue_.finish_two(states_[row_of(half)], at_.q + 8 * i, early_[i][half], make_float2(firsts[2 * half], firsts[2 * half + 1]),
                             make_float2(seconds[2 * half], seconds[2 * half + 1]));
      }
    }
  }

 private:
  __device__ std::int32_t row_of(int half) const { return at_.row + 8 * half; }
  __device__ bool is_row(int half) const { return row_of(half) < rows_; }

  const Epilogue& epilogue_;
  const typename Epilogue::row_state* const states_;
  const std::int32_t rows_;
  const sums_place at_;
  decltype(epilogue_.early_two(states_[0], 0)) early_[Count][2];
};

// A block that has all columns of its tiles.
template <int N, class Epilogue>
__device__ __forceinline__ void finish_own(const float (&sums)[N / 2], const Epilogue& epilogue, const typename Epilogue::row_state* states,
                                           std::int32_t rows, sums_place at) {
  constexpr int together = 4; // sixteens
#pragma unroll
  for (int start = 0; start < N / 16; start += together) {
    const finisher<together, Epilogue> some(epilogue, states, rows, {at.row, at.q + 8 * start}, min(together, N / 16 - start));
#pragma unroll
    for (int i = start; i < std::min(start + together, N / 16); ++i) some.finish(i - start, sums + 8 * i, sums + 8 * i + 4);
  }
}

// What becomes of a unit's sums in a cluster: each block gives half of them to the other, and finishes the other half. `round`: how many
// units the cluster has had.
template <int N, class Epilogue>
__device__ __forceinline__ void share_sums(const float (&sums)[N / 2], std::byte* part, block_barriers<tile_of<N, 2>>& barriers,
                                           std::int32_t round, bool is_last, const Epilogue& epilogue,
                                           const typename Epilogue::row_state* states, std::int32_t rows, std::int32_t rank,
                                           sums_place at) {
  using tile = tile_of<N, 2>;
  const std::int32_t other = rank ^ 1;
  const auto half = [&](int of, int i) { return of == 0 ? sums[i] : sums[8 * tile::own + i]; };
  if (round > 0) wait_for_cluster(&barriers.taken, static_cast<std::uint32_t>(round - 1) & 1);
  const std::uint32_t to = address_in(other, shared_address(part) + threadIdx.x * 16);
#pragma unroll
  for (int i = 0; i < 2 * tile::own; ++i) {
    const float four[4] = {half(other, 4 * i), half(other, 4 * i + 1), half(other, 4 * i + 2), half(other, 4 * i + 3)};
    store_in(to + i * consumers * 16, four);
  }
  arrive_in(address_in(other, shared_address(&barriers.part)));
  if (is_last) cluster_arrive(); // the kernel's end waits for it
  const finisher<tile::own, Epilogue> own(epilogue, states, rows, {at.row, at.q + 8 * tile::own * rank}, tile::own);
  wait_for_cluster(&barriers.part, static_cast<std::uint32_t>(round) & 1);
#pragma unroll
  for (int i = 0; i < tile::own; ++i) {
    float total[8];
#pragma unroll
    for (int k = 0; k < 8; k += 4) {
      const float4 sent = reinterpret_cast<const float4*>(part)[(2 * i + k / 4) * consumers + threadIdx.x];
      total[k] = half(rank, 8 * i + k) + sent.x, total[k + 1] = half(rank, 8 * i + k + 1) + sent.y;
      total[k + 2] = half(rank, 8 * i + k + 2) + sent.z, total[k + 3] = half(rank, 8 * i + k + 3) + sent.w;
    }
    own.finish(i, total, total + 4);
  }
  if (!is_last) arrive_in(address_in(other, shared_address(&barriers.taken)));
}

} // namespace troupe::gpu::wide
