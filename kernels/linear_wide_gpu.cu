// Products of 33 to 128 rows, or of any number where they must not matter: tiles of W go through shared memory by tensor copies, two warp
// groups multiply 64 rows of x each by all of a tile. A row's sums are added up in an order that the shape of W decides alone.
//
// A tile brings its own copy of x from the L2 cache, so a tile has many rows of W where there are enough of them for all multiprocessors.
// Where there are few, a cluster of two blocks takes a tile, each half of the columns; they exchange sums through each other's shared
// memory, which is one addition for each output, so that the order does not matter.
#include <algorithm>

#include "kernels/linear_paths.cuh"
#include "kernels/linear_wide.cuh"

namespace troupe::gpu {
namespace {

using namespace wide;

template <class T, int N, int Cluster, class Epilogue>
__global__ void __launch_bounds__(threads, 1) wide_kernel(const __grid_constant__ CUtensorMap weight, const __grid_constant__ CUtensorMap x,
                                                          const __grid_constant__ tile_shape s, const __grid_constant__ Epilogue epilogue) {
  using tile = tile_of<N, Cluster>;
  extern __shared__ __align__(1024) std::byte stages[];
  __shared__ block_barriers<tile> barriers;
  __shared__ typename Epilogue::row_state states[block_rows];
  const std::int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, rank = Cluster > 1 ? block_in_cluster() : 0;
  if (threadIdx.x == 0) barriers.init(s.active_groups());
  __syncthreads();
  if constexpr (Cluster > 1) cluster_arrive(); // the barriers are ready
  if (warp == consumers / 32) {
    copier<N, Cluster, Epilogue::plain>(s, weight, x, rank, stages, barriers).run();
    if constexpr (Cluster > 1) {
      cluster_wait();
      cluster_arrive();
      cluster_wait();
    }
    return;
  }
  if constexpr (Cluster > 1) cluster_wait();
  wait_for_previous(); // for what the epilogue reads and writes
  const std::int32_t clusters = static_cast<std::int32_t>(gridDim.x) / Cluster, first = static_cast<std::int32_t>(blockIdx.x) / Cluster;
  const bool active = warp / 4 < s.active_groups();
  multiplier<T, N, Cluster> product(stages, barriers, warp / 4, active);
  std::int32_t held = -1; // whose states are in shared memory
  for (std::int32_t unit = first, round = 0; unit < s.units(); unit += clusters, ++round) {
    const std::int32_t first_row = s.first_row(unit), rows = min(s.rows - first_row, block_rows);
    if (held != first_row) {
      if (held >= 0) sync_threads(1, consumers); // all are done with those of before
      if (static_cast<std::int32_t>(threadIdx.x) < rows) states[threadIdx.x] = epilogue.of(first_row + threadIdx.x);
      sync_threads(1, consumers);
      held = first_row;
    }
    float sums[N / 2];
    product.run(step_range<Cluster>(s.steps, rank).count, sums);
    if (!active) continue; // its threads have nothing to finish
    const sums_place at{16 * warp + lane / 4, s.tile(unit) * (N / 2) + 2 * (lane % 4)};
    if constexpr (Cluster == 1) {
      finish_own<N>(sums, epilogue, states, rows, at);
    } else {
      share_sums<N>(sums, stages + tile::stages * tile::stage_bytes, barriers, round, unit + clusters >= s.units(), epilogue, states, rows,
                    rank, at);
    }
  }
  if constexpr (Cluster > 1) {
    if (!active) cluster_arrive(); // the others did when they had sent their last sums
    cluster_wait();                // no block ends before it has all that the other one sends
  }
}

constexpr int most_rows = 224; // of W in a tile

struct tile_plan {
  std::int32_t tiles, clusters; // all of them; those that run at once
  std::int64_t cost;            // of one block of rows; about proportional to the time
};

template <class T, int N, int Cluster, class Epilogue>
struct wide_path {
  using tile = tile_of<N, Cluster>;

  static tile_plan plan(const linear_args& args, row_pairs outputs) {
    static const std::int32_t most =
        resident_clusters(reinterpret_cast<const void*>(wide_kernel<T, N, Cluster, Epilogue>), Cluster, threads, tile::shared_bytes);
    const std::int32_t tiles = (outputs.pairs + N / 2 - 1) / (N / 2), rounds = (tiles + most - 1) / most;
    const std::int64_t steps = (steps_of(args) + Cluster - 1) / Cluster;
    return {tiles, most, rounds * (steps * (N + group_rows) + (Cluster > 1 ? 4 * N : N))};
  }
  static std::int32_t steps_of(const linear_args& args) {
    return static_cast<std::int32_t>((args.columns + box_columns - 1) / box_columns);
  }

  static void start(cuda::stream_handle on, const linear_args& args, row_pairs outputs, const Epilogue& epilogue) {
    const weight_map weight = map_weight(args.type, args.weight, args.out_rows, args.columns, Epilogue::plain, outputs.distance, N);
    const std::int32_t x_rows = args.rows <= group_rows ? group_rows : block_rows;
    const CUtensorMap x = map_rows(args.type, args.x, args.rows, args.columns, args.x_stride, x_rows);
    const tile_plan p = plan(args, outputs);
    tile_shape s{};
    s.tiles = p.tiles;
    s.steps = steps_of(args);
    s.rows = args.rows;
    s.row_blocks = (args.rows + block_rows - 1) / block_rows;
    s.inner_groups = outputs.distance / 8;
    s.box_groups = weight.box_groups;
    const std::int32_t clusters = std::min(s.tiles * s.row_blocks, p.clusters);
    launch_shape how({static_cast<unsigned>(clusters * Cluster), threads, tile::shared_bytes, args.overlaps});
    how.cluster = Cluster;
    launch(on, how, wide_kernel<T, N, Cluster, Epilogue>, weight.map, x, s, epilogue);
  }
};

} // namespace

bool wide_fills(row_pairs outputs) {
  const std::int32_t tiles = (outputs.pairs + most_rows / 2 - 1) / (most_rows / 2), places = multiprocessors();
  return 10 * tiles >= 9 * places * ((tiles + places - 1) / places);
}

template <class T, class Epilogue>
void start_wide(cuda::stream_handle on, const linear_args& args, row_pairs outputs, const Epilogue& epilogue) {
  using few = wide_path<T, 64, 2, Epilogue>;
  using some = wide_path<T, 128, 2, Epilogue>;
  using many = wide_path<T, most_rows, 1, Epilogue>;
  struct {
    std::int64_t cost;
    void (*start)(cuda::stream_handle, const linear_args&, row_pairs, const Epilogue&);
  } const paths[] = {{few::plan(args, outputs).cost, few::start},
                     {some::plan(args, outputs).cost, some::start},
                     {many::plan(args, outputs).cost, many::start}};
  const auto* best = std::min_element(std::begin(paths), std::end(paths), [](const auto& a, const auto& b) { return a.cost < b.cost; });
  // Over several blocks of rows, twice as many rows of W in a tile bring x half as often; both add up in the same order.
  if (best == paths && args.rows > block_rows) ++best;
  best->start(on, args, outputs, epilogue);
}

template void start_wide<bf16>(cuda::stream_handle, const linear_args&, row_pairs, const store_epilogue<bf16, bf16>&);
template void start_wide<bf16>(cuda::stream_handle, const linear_args&, row_pairs, const store_epilogue<bf16, float>&);
template void start_wide<bf16>(cuda::stream_handle, const linear_args&, row_pairs, const swiglu_epilogue<bf16>&);
template void start_wide<bf16>(cuda::stream_handle, const linear_args&, row_pairs, const qkv_epilogue<bf16>&);
template void start_wide<f16>(cuda::stream_handle, const linear_args&, row_pairs, const store_epilogue<f16, f16>&);
template void start_wide<f16>(cuda::stream_handle, const linear_args&, row_pairs, const store_epilogue<f16, float>&);
template void start_wide<f16>(cuda::stream_handle, const linear_args&, row_pairs, const swiglu_epilogue<f16>&);
template void start_wide<f16>(cuda::stream_handle, const linear_args&, row_pairs, const qkv_epilogue<f16>&);

} // namespace troupe::gpu
