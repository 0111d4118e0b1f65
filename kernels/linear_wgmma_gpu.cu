// Products of 9 to 128 rows: tiles of W go through shared memory by tensor copies, warp groups multiply 64 rows of W each by all of x.
//
// A tile is 64 rows of W, or 128 where there are many: its x comes from the L2 cache, which would otherwise be the limit. The tiles of the
// last round are 64 rows all the same when that shares them out better. A cluster of
// two blocks takes a tile, each half of the columns, so that few tiles too keep all multiprocessors reading evenly. (Clusters of two are
// the largest that fill the GPU: of four 30 find room on 132 multiprocessors.) The blocks' sums meet in shared memory: each block adds up,
// in the order of the blocks, and finishes its own rows of x.
#include <algorithm>

#include "kernels/linear_wgmma.cuh"

namespace troupe::gpu {
namespace {

using namespace tiles;

template <class T, int Columns, int Groups, class Epilogue>
__global__ void __launch_bounds__(tile_of<Columns, Groups>::threads, 1)
    wgmma_kernel(const __grid_constant__ CUtensorMap weight, const __grid_constant__ CUtensorMap x, const __grid_constant__ tile_shape s,
                 const __grid_constant__ Epilogue epilogue) {
  using shape = tile_of<Columns, Groups>;
  extern __shared__ __align__(1024) std::byte stages[];
  __shared__ block_barriers barriers;
  __shared__ typename Epilogue::row_state states[Columns];
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
    if (static_cast<std::int32_t>(threadIdx.x) < s.rows) states[threadIdx.x] = epilogue.of(threadIdx.x);
    asm volatile("bar.sync 1, %0;" ::"n"(shape::consumers) : "memory");
    const std::int32_t clusters = static_cast<std::int32_t>(gridDim.x) / cluster;
    const std::int32_t steps = step_range(s.steps, rank).count;
    multiplier<T, Columns, Groups> product(stages, barriers, warp / 4);
    std::uint32_t parity = 0;
    for (std::int32_t tile = static_cast<std::int32_t>(blockIdx.x) / cluster; tile < s.tiles; tile += clusters, parity ^= 1) {
      const tile_place<Groups> place(s, tile);
      if (threadIdx.x == 0) mbarrier_expect(&barriers.parts, shape::parts_bytes / Groups * place.count);
      if (warp / 4 >= place.count) {
        product.skip(steps);
        if (tile >= clusters) wait_for_cluster(&barriers.taken, parity ^ 1);
        take_parts(barriers);
        continue;
      }
      float sums[Columns / 2];
      product.run(steps, sums);
      if (tile >= clusters) wait_for_cluster(&barriers.taken, parity ^ 1);
      send_parts<Columns, Groups>(sums, rank, parts, barriers);
      const std::int32_t q = place.first * 32 + warp * 8 + threadIdx.x % 32 / 4;
      finish_parts<Columns, Groups>(parts, states, rank, q, s.rows, epilogue, barriers, parity);
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

// `units` times 64 rows as tiles for `clusters`: when one unit each is enough for what full rounds of whole tiles leave, it gets no more.
void share_out(tile_shape& s, std::int32_t units, std::int32_t groups, std::int32_t clusters) {
  const std::int32_t rest = units % (groups * clusters);
  if (rest <= clusters) {
    s.whole = (units - rest) / groups;
    s.tiles = s.whole + rest;
  } else {
    s.tiles = s.whole = (units + groups - 1) / groups;
  }
}

template <class T, int Columns, int Groups, class Epilogue>
void start_tiles(cuda::stream_handle on, const linear_args& args, row_pairs outputs, const Epilogue& epilogue) {
  using shape = tile_of<Columns, Groups>;
  const weight_map weight = map_weight(args.type, args.weight, args.out_rows, args.columns, Epilogue::plain, outputs.distance);
  const CUtensorMap x = map_rows(args.type, args.x, args.rows, args.columns, args.x_stride, Columns);
  tile_shape s{};
  s.steps = static_cast<std::int32_t>((args.columns + box_columns - 1) / box_columns);
  s.rows = args.rows;
  s.distance = outputs.distance;
  s.box_groups = weight.box_groups;
  static const std::int32_t most = resident_clusters(wgmma_kernel<T, Columns, Groups, Epilogue>, shape::threads, shape::shared_bytes);
  share_out(s, (outputs.pairs + 31) / 32, Groups, most);
  launch_shape how({static_cast<unsigned>(std::min(s.tiles, most) * cluster), shape::threads, shape::shared_bytes, args.overlaps});
  how.cluster = cluster;
  launch(on, how, wgmma_kernel<T, Columns, Groups, Epilogue>, weight.map, x, s, epilogue);
}

// Small tiles where all of them run at once; else large ones, for which x is read half as often.
template <class T, int Columns, class Epilogue>
void start_columns(cuda::stream_handle on, const linear_args& args, row_pairs outputs, const Epilogue& epilogue) {
  if (outputs.pairs <= multiprocessors() / cluster * 32) return start_tiles<T, Columns, 1>(on, args, outputs, epilogue);
  start_tiles<T, Columns, 2>(on, args, outputs, epilogue);
}

std::int32_t columns_for(std::int32_t rows) { return rows <= 16 ? 16 : rows <= 32 ? 32 : rows <= 64 ? 64 : 128; }

// y = rms_norm(x), a block a row. `columns` is a multiple of 8.
template <class T>
__global__ void __launch_bounds__(512)
    norm_kernel(const T* x, std::int64_t x_stride, const T* weight, float epsilon, std::int32_t columns, T* y) {
  __shared__ float partial[16];
  if (gridDim.x > 16) let_next_start(); // at once, so that the product may fetch its first weights: a gain at 32 rows, a loss at 16
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
  switch (columns_for(args.rows)) {
    case 16:
      return start_columns<T, 16>(on, product, outputs, epilogue);
    case 32:
      return start_columns<T, 32>(on, product, outputs, epilogue);
    case 64:
      return start_columns<T, 64>(on, product, outputs, epilogue);
    default:
      return start_columns<T, 128>(on, product, outputs, epilogue);
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
