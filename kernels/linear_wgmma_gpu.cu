// Products of 9 to 128 rows: tiles of W go through shared memory by tensor copies, warp groups multiply 64 rows of W each by all of x.
//
// A tile is 64 rows of W, or 128 for many rows of x: a tile's x comes from the L2 cache, which would otherwise be the limit. A cluster of
// two blocks takes a tile, each half of the columns, so that few tiles too keep all multiprocessors reading evenly. (Clusters of two are
// the largest that fill the GPU: of four 30 find room on 132 multiprocessors.) The blocks' sums meet in shared memory: each block adds up,
// in the order of the blocks, and finishes its own rows of x.
#include <algorithm>
#include <cstdlib>

#include "kernels/cluster.cuh"
#include "kernels/launch.cuh"
#include "kernels/linear_paths.cuh"
#include "kernels/tensor_map.cuh"
#include "kernels/wgmma.cuh"

namespace troupe::gpu {
namespace {

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
  std::int32_t rows, distance, box_groups, rotate, no_x;
};

__device__ __forceinline__ void tensor_copy(void* to, const CUtensorMap& map, const std::int32_t (&at)[5], std::uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(
          shared_address(to)),
      "l"(&map), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]), "r"(shared_address(barrier))
      : "memory");
}
__device__ __forceinline__ void tensor_copy(void* to, const CUtensorMap& map, std::int32_t column, std::uint64_t* barrier) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
                   shared_address(to)),
               "l"(&map), "r"(column), "r"(0), "r"(shared_address(barrier))
               : "memory");
}

struct block_barriers {
  std::uint64_t full[most_stages], empty[most_stages];
  std::uint64_t parts; // the cluster's sums of a tile are here
  std::uint64_t taken; // what this block sent has been read everywhere
};

// This block's steps of a tile. They begin elsewhere in each cluster, so that the blocks do not read the same columns of all rows at a
// time: those lie in few of the memory's channels.
struct step_range {
  std::int32_t first, count;
  __device__ step_range(std::int32_t steps, std::int32_t rank)
      : first(steps * rank / cluster), count(steps * (rank + 1) / cluster - steps * rank / cluster) {}
  __device__ std::int32_t start(std::int32_t rotate) const {
    return count == 0 || rotate == 0 ? 0 : static_cast<std::int32_t>(blockIdx.x) / cluster % count;
  }
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
        tile_(static_cast<std::int32_t>(blockIdx.x) / cluster),
        step_(range_.start(s.rotate)) {
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
    mbarrier_expect(barrier, s_.no_x ? shape::groups * block_bytes : shape::stage_bytes);
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
    if (++step_ == range_.count) step_ = 0;
    if (step_ == range_.start(s_.rotate)) tile_ += clusters_, aim();
    return column;
  }
  __device__ void copy_x(int stage, std::int32_t column) const {
    if (s_.no_x) return;
    tensor_copy(stages_ + stage * shape::stage_bytes + shape::groups * block_bytes, x_, column, barriers_.full + stage);
  }

  const tile_shape& s_;
  const CUtensorMap &weight_, &x_;
  std::byte* const stages_;
  block_barriers& barriers_;
  const step_range range_;
  const std::int32_t clusters_;
  std::int32_t tile_, step_; // copied next
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
#pragma unroll
    for (float& sum : sums) keep_in_place(sum);
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
#pragma unroll
    for (float& sum : sums) keep_in_place(sum);
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
__device__ __forceinline__ void finish_parts(const std::byte* parts, std::int32_t rank, std::int32_t q, std::int32_t rows,
                                             const Epilogue& epilogue, block_barriers& barriers, std::uint32_t parity) {
  using shape = tile_of<Columns, Groups>;
  constexpr int together = shape::own < 2 ? 1 : 2; // eights whose loads are under way at once
  for (int start = 0; start < shape::own; start += together) {
    const std::int32_t first = 8 * (rank * shape::own + start) + 2 * (threadIdx.x % 4);
    typename Epilogue::row_state at[2 * together];
    decltype(epilogue.early(at[0], 0)) early[2 * together];
#pragma unroll
    for (int i = 0; i < 2 * together; ++i) {
      const std::int32_t row = first + 8 * (i / 2) + i % 2;
      if (row < rows) at[i] = epilogue.of(row);
    }
#pragma unroll
    for (int i = 0; i < 2 * together; ++i) {
      if (first + 8 * (i / 2) + i % 2 < rows) early[i] = epilogue.early(at[i], q);
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
      if (first + 8 * i < rows) epilogue.finish(at[2 * i], q, early[2 * i], total.x, total.z);
      if (first + 8 * i + 1 < rows) epilogue.finish(at[2 * i + 1], q, early[2 * i + 1], total.y, total.w);
    }
  }
  __syncwarp();
  if (threadIdx.x % 32 < cluster) arrive_in(address_in(threadIdx.x % 32, shared_address(&barriers.taken)));
}

template <class T, int Columns, int Groups, class Epilogue>
__global__ void __launch_bounds__(tile_of<Columns, Groups>::threads, 1)
    wgmma_kernel(const __grid_constant__ CUtensorMap weight, const __grid_constant__ CUtensorMap x, const __grid_constant__ tile_shape s,
                 const __grid_constant__ Epilogue epilogue) {
  using shape = tile_of<Columns, Groups>;
  extern __shared__ __align__(1024) std::byte stages[];
  __shared__ block_barriers barriers;
  std::byte* const parts = stages + shape::stages * shape::stage_bytes;
  const std::int32_t warp = threadIdx.x / 32, rank = block_in_cluster();
  if (threadIdx.x == 0) {
    for (int i = 0; i < shape::stages; ++i) mbarrier_init(barriers.full + i, 1), mbarrier_init(barriers.empty + i, shape::consumers / 32);
    mbarrier_init(&barriers.parts, 1);
    mbarrier_init(&barriers.taken, cluster * shape::consumers / 32);
    fence_barrier_init();
  }
  __syncthreads();
  cluster_arrive(); // the barriers are ready
  if (warp == shape::consumers / 32) {
    if (threadIdx.x % 32 == 0) copier<Columns, Groups, Epilogue::plain>(s, weight, x, rank, stages, barriers).run();
    __syncwarp();
    cluster_wait();
  } else {
    cluster_wait();
    wait_for_previous(); // for what the epilogue reads and writes
    const std::int32_t clusters = static_cast<std::int32_t>(gridDim.x) / cluster;
    const std::int32_t steps = step_range(s.steps, rank).count;
    multiplier<T, Columns, Groups> product(stages, barriers, warp / 4);
    std::uint32_t parity = 0;
    for (std::int32_t tile = static_cast<std::int32_t>(blockIdx.x) / cluster; tile < s.tiles; tile += clusters, parity ^= 1) {
      if (threadIdx.x == 0) mbarrier_expect(&barriers.parts, shape::parts_bytes);
      float sums[Columns / 2];
      product.run(steps, sums);
      if (tile >= clusters) wait_for_cluster(&barriers.taken, parity ^ 1);
      send_parts<Columns, Groups>(sums, rank, parts, barriers);
      const std::int32_t q = tile * (shape::w_rows / 2) + warp * 8 + threadIdx.x % 32 / 4;
      finish_parts<Columns, Groups>(parts, rank, q, s.rows, epilogue, barriers, parity);
    }
  }
  cluster_arrive(); // no block ends while others may still send to it
  cluster_wait();
}

// How many clusters of a kernel run at once.
template <class Kernel>
std::int32_t resident_clusters(Kernel* kernel, unsigned threads, std::size_t shared) {
  cuda::check(
      cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
      "cudaFuncSetAttribute");
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {cluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = cluster;
  config.blockDim = threads;
  config.dynamicSmemBytes = shared;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int count = 0;
  cuda::check(cudaOccupancyMaxActiveClusters(&count, kernel, &config), "cudaOccupancyMaxActiveClusters");
  return count;
}

template <class T, int Columns, int Groups, class Epilogue>
void start_tiles(cuda::stream_handle on, const linear_args& args, row_pairs outputs, const Epilogue& epilogue) {
  using shape = tile_of<Columns, Groups>;
  const weight_map weight = map_weight(args.type, args.weight, args.out_rows, args.columns, Epilogue::plain, outputs.distance);
  const CUtensorMap x = map_rows(args.type, args.x, args.rows, args.columns, args.x_stride, Columns);
  tile_shape s{};
  s.tiles = (outputs.pairs + shape::w_rows / 2 - 1) / (shape::w_rows / 2);
  s.steps = static_cast<std::int32_t>((args.columns + box_columns - 1) / box_columns);
  s.rows = args.rows;
  s.distance = outputs.distance;
  s.box_groups = weight.box_groups;
  static const int rotate = std::getenv("WG_ROT") != nullptr ? std::atoi(std::getenv("WG_ROT")) : 1;
  s.rotate = rotate;
  static const int no_x = std::getenv("WG_NOX") != nullptr ? 1 : 0;
  s.no_x = no_x;
  static const std::int32_t most = resident_clusters(wgmma_kernel<T, Columns, Groups, Epilogue>, shape::threads, shape::shared_bytes);
  launch_shape how({static_cast<unsigned>(std::min(s.tiles, most) * cluster), shape::threads, shape::shared_bytes, args.overlaps});
  how.cluster = cluster;
  launch(on, how, wgmma_kernel<T, Columns, Groups, Epilogue>, weight.map, x, s, epilogue);
}

std::int32_t columns_for(std::int32_t rows) { return rows <= 16 ? 16 : rows <= 32 ? 32 : rows <= 64 ? 64 : 128; }

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

std::size_t linear_workspace(std::int32_t rows, std::int64_t columns) {
  if (rows <= stream_rows) return 0;
  return static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns) * 2;
}

template <class T, class Epilogue>
void start_wgmma(cuda::stream_handle on, const linear_args& args, row_pairs outputs, const Epilogue& epilogue) {
  linear_args product = args;
  if (args.norm_weight != nullptr) {
    auto* const y = static_cast<T*>(args.workspace);
    const auto columns = static_cast<std::int32_t>(args.columns);
    launch(on, {static_cast<unsigned>(args.rows), 512, 0, args.overlaps}, norm_kernel<T>, static_cast<const T*>(args.x), args.x_stride,
           static_cast<const T*>(args.norm_weight), args.epsilon, columns, y);
    product.x = y;
    product.x_stride = args.columns;
  }
  static const int force = std::getenv("WG_GROUPS") != nullptr ? std::atoi(std::getenv("WG_GROUPS")) : 0;
  const bool two = force == 2 || (force == 0 && args.rows > 64);
  switch (columns_for(args.rows)) {
    case 16:
      return start_tiles<T, 16, 1>(on, product, outputs, epilogue);
    case 32:
      return two ? start_tiles<T, 32, 2>(on, product, outputs, epilogue) : start_tiles<T, 32, 1>(on, product, outputs, epilogue);
    case 64:
      return start_tiles<T, 64, 2>(on, product, outputs, epilogue);
    default:
      return two ? start_tiles<T, 128, 2>(on, product, outputs, epilogue) : start_tiles<T, 128, 1>(on, product, outputs, epilogue);
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
