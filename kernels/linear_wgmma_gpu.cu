// Products of 9 to 128 rows: tiles of W go through shared memory by tensor copies, warp groups multiply them by all of x.
//
// A tile is Rows = 128 Blocks rows of W; a unit of work is a tile's next 64 columns. The units of all tiles, in order, are shared out
// evenly: block b takes those from units * b / blocks on, so that every multiprocessor reads the same number of bytes. A tile that several
// blocks share is summed by whichever of them is done last, in the order of the blocks: the result does not depend on who that is.
#include <algorithm>
#include <cstdlib>

#include "kernels/launch.cuh"
#include "kernels/linear_paths.cuh"
#include "kernels/tensor_map.cuh"
#include "kernels/wgmma.cuh"

namespace troupe::gpu {
namespace {

constexpr int consumers = 256, threads = consumers + 32; // two warp groups that multiply, and a warp that copies
constexpr int block_bytes = 64 * box_columns * 2;        // of 64 rows of W
constexpr std::size_t max_tiles = 16384;

// Columns is how many rows of x a tile is multiplied by, Blocks how many times 64 rows of W a warp group takes.
template <int Columns>
struct tile_of {
  static constexpr int blocks = Columns == 128 ? 2 : 1;
  static constexpr int rows = 128 * blocks;
  static constexpr int sums = blocks * Columns / 2; // of a thread
  static constexpr int x_bytes = Columns * box_columns * 2;
  static constexpr int stage_bytes = 2 * blocks * block_bytes + x_bytes;
  // So that two kernels fit on a multiprocessor, but for the widest.
  static constexpr int stages = (Columns == 128 ? 200 : 108) * 1024 / stage_bytes;
  static constexpr int resident = Columns == 128 ? 1 : 2;
};

struct tile_shape {
  std::int32_t steps; // units of a tile
  std::int32_t units, rows, distance, box_groups;
  std::int32_t ask_late; // units yet to be copied when the next kernel is asked for
};

__host__ __device__ __forceinline__ std::int32_t first_unit(std::int32_t units, std::int32_t block, std::int32_t blocks) {
  return static_cast<std::int32_t>(std::int64_t{units} * block / blocks);
}
__device__ __forceinline__ std::int32_t block_of(std::int32_t unit, std::int32_t units, std::int32_t blocks) {
  return static_cast<std::int32_t>(((std::int64_t{unit} + 1) * blocks - 1) / units);
}

template <int Rank>
__device__ __forceinline__ void tensor_copy(void* to, const CUtensorMap& map, const std::int32_t (&at)[Rank], std::uint64_t* barrier) {
  if constexpr (Rank == 2) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
                     shared_address(to)),
                 "l"(&map), "r"(at[0]), "r"(at[1]), "r"(shared_address(barrier))
                 : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(
            shared_address(to)),
        "l"(&map), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]), "r"(shared_address(barrier))
        : "memory");
  }
}

// One thread brings the units first .. last - 1 into the stages, x only when the previous kernel is done.
template <int Columns, bool Plain>
__device__ void copy_units(const tile_shape& s, const CUtensorMap& weight, const CUtensorMap& x, std::int32_t first, std::int32_t last,
                           std::byte* stages, std::uint64_t* full, std::uint64_t* empty) {
  using tile = tile_of<Columns>;
  const auto copy_weight = [&](std::int32_t unit, int stage) {
    const std::int32_t column = unit % s.steps * box_columns, pair = unit / s.steps * (tile::rows / 2);
    std::byte* to = stages + stage * tile::stage_bytes;
    for (std::int32_t q = pair; q < pair + tile::rows / 2; q += 8 * s.box_groups, to += s.box_groups * (block_bytes / 4)) {
      if constexpr (Plain)
        tensor_copy<5>(to, weight, {column, 2 * q, 0, 0, 0}, full + stage);
      else
        tensor_copy<5>(to, weight, {column, 0, 0, q % s.distance / 8, q / s.distance}, full + stage);
    }
  };
  const auto copy_x = [&](std::int32_t unit, int stage) {
    tensor_copy<2>(stages + stage * tile::stage_bytes + 2 * tile::blocks * block_bytes, x, {unit % s.steps * box_columns, 0}, full + stage);
  };
  const std::int32_t early = min(last, first + tile::stages);
  for (std::int32_t unit = first; unit < early; ++unit) {
    mbarrier_expect(full + (unit - first), tile::stage_bytes);
    copy_weight(unit, unit - first);
  }
  wait_for_previous();
  bool asked = false;
  for (std::int32_t unit = first; unit < early; ++unit) copy_x(unit, unit - first);
  int stage = 0;
  std::uint32_t parity = 0;
  for (std::int32_t unit = first + tile::stages; unit < last; ++unit) {
    if (!asked && last - unit <= s.ask_late) let_next_start(), asked = true;
    mbarrier_wait(empty + stage, parity);
    mbarrier_expect(full + stage, tile::stage_bytes);
    copy_weight(unit, stage);
    copy_x(unit, stage);
    if (++stage == tile::stages) stage = 0, parity ^= 1;
  }
  if (!asked) let_next_start();
}

__device__ __forceinline__ void join_consumers() { asm volatile("bar.sync 1, %0;" ::"n"(consumers) : "memory"); }

// The block's part of a tile's sums goes to its place in the workspace. Returns whether all parts of the tile are there now, and then
// `sums` holds their total.
template <int Sums>
__device__ bool join_parts(float (&sums)[Sums], std::int32_t tile, const tile_shape& s, float* parts, std::uint32_t* counters,
                           std::uint32_t& shared_count) {
  const auto blocks = static_cast<std::int32_t>(gridDim.x);
  // A block has parts of at most two tiles, the first and the last that it takes.
  const auto part_of = [&](std::int32_t block) {
    const std::int32_t second = first_unit(s.units, block, blocks) / s.steps != tile;
    return reinterpret_cast<float4*>(parts) + (std::int64_t{block} * 2 + second) * (Sums / 4) * consumers + threadIdx.x;
  };
  float4* const mine = part_of(static_cast<std::int32_t>(blockIdx.x));
#pragma unroll
  for (int i = 0; i < Sums / 4; ++i)
    __stcg(mine + i * consumers, make_float4(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]));
  const std::int32_t from = block_of(tile * s.steps, s.units, blocks), to = block_of(tile * s.steps + s.steps - 1, s.units, blocks);
  __threadfence();
  join_consumers();
  if (threadIdx.x == 0) shared_count = atomicAdd(counters + tile, 1U);
  join_consumers();
  const bool all = shared_count == static_cast<std::uint32_t>(to - from);
  if (!all) return false;
  __threadfence();
  if (threadIdx.x == 0) counters[tile] = 0;
#pragma unroll
  for (int i = 0; i < Sums; ++i) sums[i] = 0;
  for (std::int32_t block = from; block <= to; ++block) {
    const float4* const part = part_of(block);
#pragma unroll
    for (int i = 0; i < Sums / 4; ++i) {
      const float4 v = __ldcg(part + i * consumers);
      sums[4 * i] += v.x, sums[4 * i + 1] += v.y, sums[4 * i + 2] += v.z, sums[4 * i + 3] += v.w;
    }
  }
  return true;
}

// A thread's sums of 16 rows of W: pair q, rows of x 8 j + 2t and the next.
template <int Columns, class Epilogue>
__device__ __forceinline__ void finish_pair(const float* sums, std::int32_t q, std::int32_t rows, const Epilogue& epilogue) {
  constexpr int together = 2; // groups of 8 rows whose loads are under way at once
  const std::int32_t t = threadIdx.x % 4;
#pragma unroll
  for (int start = 0; start < Columns / 8; start += together) {
    decltype(epilogue.early(0, 0)) early[2 * together];
#pragma unroll
    for (int i = 0; i < 2 * together; ++i) {
      const std::int32_t row = 8 * (start + i / 2) + 2 * t + i % 2;
      if (row < rows) early[i] = epilogue.early(row, q);
    }
#pragma unroll
    for (int i = 0; i < 2 * together; ++i) {
      const std::int32_t row = 8 * (start + i / 2) + 2 * t + i % 2;
      const float* const of = sums + 4 * (start + i / 2) + i % 2;
      if (row < rows) epilogue.finish(row, q, early[i], of[0], of[2]);
    }
  }
}

template <class T, int Columns, class Epilogue>
__global__ void __launch_bounds__(threads, tile_of<Columns>::resident)
    wgmma_kernel(const __grid_constant__ CUtensorMap weight, const __grid_constant__ CUtensorMap x, const __grid_constant__ tile_shape s,
                 float* parts, std::uint32_t* counters, const __grid_constant__ Epilogue epilogue) {
  using tile = tile_of<Columns>;
  extern __shared__ __align__(1024) std::byte stages[];
  __shared__ std::uint64_t full[tile::stages], empty[tile::stages];
  __shared__ std::uint32_t shared_count;
  const std::int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const std::int32_t first = first_unit(s.units, blockIdx.x, gridDim.x), last = first_unit(s.units, blockIdx.x + 1, gridDim.x);
  if (threadIdx.x == consumers) {
    for (int i = 0; i < tile::stages; ++i) mbarrier_init(full + i, 1), mbarrier_init(empty + i, consumers / 32);
    fence_barrier_init();
  }
  __syncthreads();
  if (warp == consumers / 32) {
    if (lane == 0) copy_units<Columns, Epilogue::plain>(s, weight, x, first, last, stages, full, empty);
    return;
  }
  wait_for_previous(); // for what the epilogue reads and writes
  const std::int32_t group = warp / 4;
  int stage = 0;
  std::uint32_t parity = 0;
  float sums[tile::sums];
  for (std::int32_t unit = first; unit < last;) {
    const std::int32_t of = unit / s.steps, end = min(last, (of + 1) * s.steps);
    const bool whole = unit % s.steps == 0 && end == (of + 1) * s.steps;
#pragma unroll
    for (float& sum : sums) sum = 0;
    for (; unit < end; ++unit) {
      mbarrier_wait(full + stage, parity);
      const std::uint32_t a = shared_address(stages + stage * tile::stage_bytes) + group * tile::blocks * block_bytes;
      const std::uint32_t b = shared_address(stages + stage * tile::stage_bytes) + 2 * tile::blocks * block_bytes;
#pragma unroll
      for (float& sum : sums) keep_in_place(sum);
      wgmma_begin();
#pragma unroll
      for (int k = 0; k < box_columns / 16; ++k) {
#pragma unroll
        for (int i = 0; i < tile::blocks; ++i)
          wgmma<T, Columns>(*reinterpret_cast<float(*)[Columns / 2]>(sums + i * (Columns / 2)),
                            swizzled_matrix(a + i * block_bytes + 32 * k), swizzled_matrix(b + 32 * k));
      }
      wgmma_commit();
      wgmma_wait<0>();
#pragma unroll
      for (float& sum : sums) keep_in_place(sum);
      if (lane == 0) mbarrier_arrive(empty + stage);
      if (++stage == tile::stages) stage = 0, parity ^= 1;
    }
    if (!whole && !join_parts(sums, of, s, parts, counters, shared_count)) continue;
#pragma unroll
    for (int i = 0; i < tile::blocks; ++i) {
      const std::int32_t sixteens = (of * 2 * tile::blocks + group * tile::blocks + i) * 4 + warp % 4; // of rows of W
      finish_pair<Columns>(sums + i * (Columns / 2), sixteens * 8 + lane / 4, s.rows, epilogue);
    }
  }
}

template <class T, int Columns, class Epilogue>
void start_tiles(cuda::stream_handle on, const linear_args& args, row_pairs outputs, const Epilogue& epilogue) {
  using tile = tile_of<Columns>;
  const weight_map weight = map_weight(args.type, args.weight, args.out_rows, args.columns, Epilogue::plain, outputs.distance);
  const CUtensorMap x = map_rows(args.type, args.x, args.rows, args.columns, args.x_stride, Columns);
  const std::int32_t tiles = (outputs.pairs + tile::rows / 2 - 1) / (tile::rows / 2);
  require(static_cast<std::size_t>(tiles) <= max_tiles, "linear", "too many rows of W");
  tile_shape s{};
  s.steps = static_cast<std::int32_t>((args.columns + box_columns - 1) / box_columns);
  s.units = tiles * s.steps;
  s.rows = args.rows;
  s.distance = outputs.distance;
  s.box_groups = weight.box_groups;
  static const int ask_late = std::getenv("ASK_LATE_TILES") != nullptr ? std::atoi(std::getenv("ASK_LATE_TILES")) : 4;
  s.ask_late = ask_late;
  auto* const counters = static_cast<std::uint32_t*>(args.workspace);
  auto* const parts = reinterpret_cast<float*>(static_cast<std::byte*>(args.workspace) + linear_counters());
  const auto grid = static_cast<unsigned>(std::min(s.units, multiprocessors()));
  launch(on, {grid, threads, static_cast<std::size_t>(tile::stages) * tile::stage_bytes, args.overlaps}, wgmma_kernel<T, Columns, Epilogue>,
         weight.map, x, s, parts, counters, epilogue);
}

std::int32_t columns_for(std::int32_t rows) { return rows <= 16 ? 16 : rows <= 32 ? 32 : rows <= 64 ? 64 : 128; }

// Two parts a block of the widest tile that so many rows take.
std::size_t parts_bytes(std::int32_t rows) {
  const auto tile = static_cast<std::size_t>(columns_for(rows)) * (rows > 64 ? 256 : 128) * sizeof(float);
  return 2 * static_cast<std::size_t>(multiprocessors()) * tile;
}

// y = rms_norm(x), a block a row. `columns` is a multiple of 8.
template <class T>
__global__ void __launch_bounds__(512)
    norm_kernel(const T* x, std::int64_t x_stride, const T* weight, float epsilon, std::int32_t columns, T* y) {
  __shared__ float partial[16];
  wait_for_previous();
  let_next_start();
  const T* const row = x + blockIdx.x * x_stride;
  float squares = 0;
  for (std::int32_t i = 8 * threadIdx.x; i < columns; i += 8 * blockDim.x) {
    const eight<T> v = load_eight(row + i);
#pragma unroll
    for (int k = 0; k < 8; ++k) squares += to_float(v.at[k]) * to_float(v.at[k]);
  }
  squares = warp_sum(squares);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = squares;
  __syncthreads();
  squares = warp_sum(threadIdx.x % 32 < blockDim.x / 32 ? partial[threadIdx.x % 32] : 0.0F);
  const float scale = rsqrtf(squares / static_cast<float>(columns) + epsilon);
  for (std::int32_t i = 8 * threadIdx.x; i < columns; i += 8 * blockDim.x) {
    eight<T> v = load_eight(row + i);
    const eight<T> w = load_eight(weight + i);
#pragma unroll
    for (int k = 0; k < 8; ++k) v.at[k] = from_float<T>(to_float(v.at[k]) * scale * to_float(w.at[k]));
    store_eight(y + blockIdx.x * std::int64_t{columns} + i, v);
  }
}

} // namespace

std::size_t linear_counters() { return max_tiles * sizeof(std::uint32_t); }

std::size_t linear_workspace(std::int32_t rows, std::int64_t columns) {
  if (rows <= stream_rows) return 0;
  return linear_counters() + parts_bytes(rows) + static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns) * 2;
}

template <class T, class Epilogue>
void start_wgmma(cuda::stream_handle on, const linear_args& args, row_pairs outputs, const Epilogue& epilogue) {
  linear_args product = args;
  if (args.norm_weight != nullptr) {
    auto* const y = reinterpret_cast<T*>(static_cast<std::byte*>(args.workspace) + linear_counters() + parts_bytes(args.rows));
    const auto columns = static_cast<std::int32_t>(args.columns);
    launch(on, {static_cast<unsigned>(args.rows), 512, 0, args.overlaps}, norm_kernel<T>, static_cast<const T*>(args.x), args.x_stride,
           static_cast<const T*>(args.norm_weight), args.epsilon, columns, y);
    product.x = y;
    product.x_stride = args.columns;
  }
  switch (columns_for(args.rows)) {
    case 16:
      return start_tiles<T, 16>(on, product, outputs, epilogue);
    case 32:
      return start_tiles<T, 32>(on, product, outputs, epilogue);
    case 64:
      return start_tiles<T, 64>(on, product, outputs, epilogue);
    default:
      return start_tiles<T, 128>(on, product, outputs, epilogue);
  }
}

template void start_wgmma<bf16>(cuda::stream_handle, const linear_args&, row_pairs, const store_epilogue<bf16, bf16>&);
template void start_wgmma<bf16>(cuda::stream_handle, const linear_args&, row_pairs, const store_epilogue<bf16, float>&);
template void start_wgmma<bf16>(cuda::stream_handle, const linear_args&, row_pairs, const swiglu_epilogue<bf16>&);
template void start_wgmma<bf16>(cuda::stream_handle, const linear_args&, row_pairs, const qkv_epilogue<bf16>&);
template void start_wgmma<f16>(cuda::stream_handle, const linear_args&, row_pairs, const store_epilogue<f16, f16>&);
template void start_wgmma<f16>(cuda::stream_handle, const linear_args&, row_pairs, const store_epilogue<f16, float>&);
template void start_wgmma<f16>(cuda::stream_handle, const linear_args&, row_pairs, const swiglu_epilogue<f16>&);
template void start_wgmma<f16>(cuda::stream_handle, const linear_args&, row_pairs, const qkv_epilogue<f16>&);

} // namespace troupe::gpu
