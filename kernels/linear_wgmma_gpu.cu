// Products of 9 to 32 rows: tiles of W go through shared memory by tensor copies, warp groups multiply 64 rows of W each by all of x.
//
// A tile is 64 rows of W, or 128 for many rows of x: a tile's x comes from the L2 cache, which would otherwise be the limit. A cluster of
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
      if (threadIdx.x == 0) mbarrier_expect(&barriers.parts, shape::parts_bytes);
      float sums[Columns / 2];
      product.run(steps, sums);
      if (tile >= clusters) wait_for_cluster(&barriers.taken, parity ^ 1);
      send_parts<Columns, Groups>(sums, rank, parts, barriers);
      const std::int32_t q = tile * (shape::w_rows / 2) + warp * 8 + threadIdx.x % 32 / 4;
      finish_parts<Columns, Groups>(parts, states, rank, q, s.rows, epilogue, barriers, parity);
    }
  }
  cluster_arrive(); // no block ends while others may still send to it
  cluster_wait();
}

template <class T, int Columns, int Groups, class Epilogue>
void start_tiles(cuda::stream_handle on, const linear_args& args, row_pairs outputs, const Epilogue& epilogue) {
  using shape = tile_of<Columns, Groups>;
  const weight_map weight = map_weight(args.type, args.weight, args.out_rows, args.columns, Epilogue::plain, outputs.distance, 64);
  const CUtensorMap x = map_rows(args.type, args.x, args.rows, args.columns, args.x_stride, Columns);
  tile_shape s{};
  s.tiles = (outputs.pairs + shape::w_rows / 2 - 1) / (shape::w_rows / 2);
  s.steps = static_cast<std::int32_t>((args.columns + box_columns - 1) / box_columns);
  s.rows = args.rows;
  s.distance = outputs.distance;
  s.box_groups = weight.box_groups;
  static const std::int32_t most = resident_clusters(reinterpret_cast<const void*>(wgmma_kernel<T, Columns, Groups, Epilogue>), cluster,
                                                     shape::threads, shape::shared_bytes);
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

} // namespace

template <class T, class Epilogue>
void start_wgmma(cuda::stream_handle on, const linear_args& args, row_pairs outputs, const Epilogue& epilogue) {
  if (args.rows <= 16) return start_columns<T, 16>(on, args, outputs, epilogue);
  start_columns<T, 32>(on, args, outputs, epilogue);
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
