// The parts of the kernel in linear_wgmma_gpu.cu, which tells what they make together.
#pragma once

#include <algorithm>

#include "kernels/cluster.cuh"
#include "kernels/cuda/linear_maps.hpp"
#include "kernels/launch.cuh"
#include "kernels/linear_paths.cuh"
#include "kernels/tensor_copies.cuh"
#include "kernels/wgmma.cuh"

namespace troupe::gpu::tiles {

constexpr int block_bytes = 64 * box_columns * 2; // of 64 rows of W
constexpr int cluster = 2;
constexpr int most_stages = 16;

// Columns is how many rows of x a tile is multiplied by, Groups how many times 64 rows of W a tile has.
template <int Columns, int Groups>
struct tile_of {
  static constexpr int groups = Groups; // warp groups that multiply
  static constexpr int w_rows = 64 * groups;
  static constexpr int consumers = 128 * groups, threads = consumers + 32; // and a warp that copies
  static constexpr int stage_bytes = groups * block_bytes + Columns * box_columns * 2;
  static constexpr int own = Columns / 8 / cluster;                  // eights of rows of x that a block finishes
  static constexpr int parts_bytes = cluster * own * consumers * 16; // what the blocks send to one
  static constexpr int stages = std::min(most_stages, (220 * 1024 - parts_bytes) / stage_bytes);
  static constexpr int shared_bytes = stages * stage_bytes + parts_bytes; // more than half a multiprocessor's: see linear_stream_gpu.cu
};

struct tile_shape {
  std::int32_t tiles, steps; // of box_columns in a tile
  std::int32_t rows, distance, box_groups;
};

struct block_barriers {
  std::uint64_t full[most_stages], empty[most_stages];
  std::uint64_t parts; // the cluster's sums of a tile are here
  std::uint64_t taken; // what this block sent has been read everywhere
};

// This block's steps of a tile.
struct step_range {
  std::int32_t first, count;
  __device__ step_range(std::int32_t steps, std::int32_t rank)
      : first(steps * rank / cluster), count(steps * (rank + 1) / cluster - steps * rank / cluster) {}
};

// What one thread does: brings W and x of all steps into the stages.
template <int Columns, int Groups, bool Plain>
class copier {
 public:
  __device__ copier(const tile_shape& s, const CUtensorMap& weight, const CUtensorMap& x, std::int32_t rank, std::byte* stages,
                    block_barriers& barriers)
      : s_(s),
        weight_(weight),
        x_(x),
        stages_(stages),
        barriers_(barriers),
        range_(s.steps, rank),
        clusters_(static_cast<std::int32_t>(gridDim.x) / cluster),
        tile_(static_cast<std::int32_t>(blockIdx.x) / cluster) {
    left_ = (s.tiles - tile_ + clusters_ - 1) / clusters_ * range_.count;
    aim();
  }

  // W of the first stages, before the previous kernel is done; x when it is; then the rest.
  __device__ void run() {
    const std::int32_t early = min(left_, shape::stages);
    std::int32_t columns[shape::stages];
#pragma unroll
    for (int i = 0; i < shape::stages; ++i) {
      if (i < early) columns[i] = copy_weight(i);
    }
    wait_for_previous();
#pragma unroll
    for (int i = 0; i < shape::stages; ++i) {
      if (i < early) copy_x(i, columns[i]);
    }
    int stage = 0;
    std::uint32_t parity = 0;
    while (left_ > 0) {
      mbarrier_wait(barriers_.empty + stage, parity);
      copy_x(stage, copy_weight(stage));
      if (++stage == shape::stages) stage = 0, parity ^= 1;
    }
    let_next_start();
  }

 private:
  using shape = tile_of<Columns, Groups>;

  __device__ void aim() {
    const std::int32_t q = tile_ * (shape::w_rows / 2);
    outer_ = q / s_.distance, inner_ = q % s_.distance / 8;
  }
  // Returns the column of the step, and goes on to the next.
  __device__ std::int32_t copy_weight(int stage) {
    const std::int32_t column = (range_.first + step_) * box_columns;
    std::byte* to = stages_ + stage * shape::stage_bytes;
    std::uint64_t* const barrier = barriers_.full + stage;
    mbarrier_expect(barrier, shape::stage_bytes);
    if constexpr (Plain) {
      for (int i = 0; i < shape::groups; ++i)
        tensor_copy(to + i * block_bytes, weight_, {column, tile_ * shape::w_rows + 64 * i, 0, 0, 0}, barrier);
    } else {
      std::int32_t inner = inner_, outer = outer_;
      for (int i = 0; i < 4 * shape::groups; i += s_.box_groups, to += s_.box_groups * (block_bytes / 4)) {
        tensor_copy(to, weight_, {column, 0, 0, inner, outer}, barrier);
        if ((inner += s_.box_groups) >= s_.distance / 8) inner = 0, ++outer;
      }
    }
    --left_;
    if (++step_ == range_.count) step_ = 0, tile_ += clusters_, aim();
    return column;
  }
  __device__ void copy_x(int stage, std::int32_t column) const {
    tensor_copy(stages_ + stage * shape::stage_bytes + shape::groups * block_bytes, x_, {column, 0}, barriers_.full + stage);
  }

  const tile_shape& s_;
  const CUtensorMap &weight_, &x_;
  std::byte* const stages_;
  block_barriers& barriers_;
  const step_range range_;
  const std::int32_t clusters_;
  std::int32_t tile_, step_ = 0; // copied next
  std::int32_t outer_ = 0, inner_ = 0, left_ = 0;
};

// A warp group's sums of 64 rows of W over this block's steps of a tile.
template <class T, int Columns, int Groups>
class multiplier {
 public:
  __device__ multiplier(const std::byte* stages, block_barriers& barriers, std::int32_t group)
      : address_(shared_address(stages)), barriers_(barriers), group_(group) {}

  __device__ void run(std::int32_t steps, float (&sums)[Columns / 2]) {
#pragma unroll
    for (float& sum : sums) sum = 0;
    keep_in_place(sums);
    int last = -1; // stage whose products are under way
    for (std::int32_t i = 0; i < steps; ++i) {
      mbarrier_wait(barriers_.full + stage_, parity_);
      const std::uint32_t at = address_ + stage_ * shape::stage_bytes;
      wgmma_begin();
#pragma unroll
      for (int k = 0; k < box_columns / 16; ++k)
        wgmma<T, Columns>(sums, swizzled_matrix(at + group_ * block_bytes + 32 * k),
                          swizzled_matrix(at + shape::groups * block_bytes + 32 * k));
      wgmma_commit();
      wgmma_wait<1>();
      if (last >= 0) pass(last);
      last = stage_;
      if (++stage_ == shape::stages) stage_ = 0, parity_ ^= 1;
    }
    wgmma_wait<0>();
    keep_in_place(sums);
    if (last >= 0) pass(last);
  }

 private:
  using shape = tile_of<Columns, Groups>;

  __device__ void pass(int stage) const {
    if (threadIdx.x % 32 == 0) mbarrier_arrive(barriers_.empty + stage);
  }

  const std::uint32_t address_;
  block_barriers& barriers_;
  const std::int32_t group_;
  int stage_ = 0;
  std::uint32_t parity_ = 0;
};

// Sends each block of the cluster its rows of x of this thread's sums.
template <int Columns, int Groups>
__device__ __forceinline__ void send_parts(const float (&sums)[Columns / 2], std::int32_t rank, const std::byte* parts,
                                           block_barriers& barriers) {
  using shape = tile_of<Columns, Groups>;
  const std::uint32_t place = shared_address(parts) + (rank * shape::own * shape::consumers + threadIdx.x) * 16;
#pragma unroll
  for (int block = 0; block < cluster; ++block) {
    const std::uint32_t to = address_in(block, place), barrier = address_in(block, shared_address(&barriers.parts));
#pragma unroll
    for (int i = 0; i < shape::own; ++i) send(to + i * shape::consumers * 16, sums + 4 * (block * shape::own + i), barrier);
  }
}

// Adds up what the cluster sent and finishes it: pair q of the outputs, rows of x 8 (rank * own + i) + 2t and the next.
template <int Columns, int Groups, class Epilogue>
__device__ __forceinline__ void finish_parts(const std::byte* parts, const typename Epilogue::row_state* states, std::int32_t rank,
                                             std::int32_t q, std::int32_t rows, const Epilogue& epilogue, block_barriers& barriers,
                                             std::uint32_t parity) {
  using shape = tile_of<Columns, Groups>;
  constexpr int together = std::min(shape::own, 4); // eights whose loads are under way at once
  for (int start = 0; start < shape::own; start += together) {
    const std::int32_t first = 8 * (rank * shape::own + start) + 2 * (threadIdx.x % 4);
    decltype(epilogue.early(states[0], 0)) early[2 * together];
#pragma unroll
    for (int i = 0; i < 2 * together; ++i) {
      const std::int32_t row = first + 8 * (i / 2) + i % 2;
      if (row < rows) early[i] = epilogue.early(states[row], q);
    }
    if (start == 0) wait_for_cluster(&barriers.parts, parity);
#pragma unroll
    for (int i = 0; i < together; ++i) {
      float4 total{};
#pragma unroll
      for (int block = 0; block < cluster; ++block) {
        const float4 v = reinterpret_cast<const float4*>(parts)[(block * shape::own + start + i) * shape::consumers + threadIdx.x];
        total.x += v.x, total.y += v.y, total.z += v.z, total.w += v.w;
      }
      const std::int32_t row = first + 8 * i;
      if (row < rows) epilogue.finish(states[row], q, early[2 * i], total.x, total.z);
      if (row + 1 < rows) epilogue.finish(states[row + 1], q, early[2 * i + 1], total.y, total.w);
    }
  }
  __syncwarp();
  if (threadIdx.x % 32 < cluster) arrive_in(address_in(threadIdx.x % 32, shared_address(&barriers.taken)));
}

} // namespace troupe::gpu::tiles
