#include "kernels/elementwise_gpu.hpp"
#include "kernels/half_types.cuh"
#include "kernels/launch.cuh"

namespace troupe::gpu {
namespace {

constexpr int threads = 128;
constexpr int tile_rows = 16; // neighbours, mostly of one block of the cache: their keys of one dimension lie side by side there
constexpr std::int32_t most_dims = 256;

// Where a row's keys of a KV head begin in the cache (its values follow), and its place in the block.
struct row_place {
  std::int32_t position, inside;
  std::int64_t block;
};

// body(row, dim) for all of them: a warp a row.
template <class Body>
__device__ __forceinline__ void for_each(std::int32_t rows, std::int32_t dims, const Body& body) {
  for (std::int32_t row = threadIdx.x / 32; row < rows; row += threads / 32) {
#pragma unroll 4
    for (std::int32_t dim = threadIdx.x % 32; dim < dims; dim += 32) body(row, dim);
  }
}

// x /= sqrt(mean(x^2) + epsilon), times the weight, for each row; a warp a row.
template <class T>
__device__ void norm_rows(float* values, std::int32_t pitch, std::int32_t rows, std::int32_t dims, const T* weight, float epsilon) {
  const std::int32_t lane = threadIdx.x % 32;
  for (std::int32_t r = threadIdx.x / 32; r < rows; r += threads / 32) {
    float* const row = values + r * pitch;
    float squares = 0;
    for (std::int32_t d = lane; d < dims; d += 32) squares += row[d] * row[d];
    const float scale = rsqrtf(warp_sum(squares) / static_cast<float>(dims) + epsilon);
    for (std::int32_t d = lane; d < dims; d += 32) row[d] = to_float(from_float<T>(row[d] * scale * to_float(weight[d])));
  }
  __syncthreads();
}

// A block: 16 rows of one head (queries, then keys, then values).
template <class T>
__global__ void __launch_bounds__(threads) rope_kv_kernel(rope_kv_args args) {
  __shared__ float values[tile_rows * (most_dims + 1)];
  __shared__ row_place places[tile_rows];
  let_next_start();
  wait_for_previous();
  const kv_layout& layout = args.kv.layout;
  const std::int32_t dims = layout.head_dim, half = dims / 2, pitch = dims + 1, head = blockIdx.y;
  const std::int32_t first = blockIdx.x * tile_rows, rows = min(tile_rows, args.rows - first);
  T* const x = static_cast<T*>(args.qkv) + first * args.stride + head * dims;
  if (static_cast<std::int32_t>(threadIdx.x) < rows) {
    const std::int32_t row = first + threadIdx.x, position = args.places.positions[row];
    const std::int64_t table = args.tables == nullptr ? row : args.tables[row];
    places[threadIdx.x] = {
        position, position % layout.block_size,
        head < args.heads ? 0 : args.places.block_tables[table * args.places.table_stride + position / layout.block_size]};
  }
  for_each(rows, dims, [&](std::int32_t row, std::int32_t dim) { values[row * pitch + dim] = to_float(x[row * args.stride + dim]); });
  __syncthreads();

  const bool is_query = head < args.heads, is_key = !is_query && head < args.heads + layout.kv_heads;
  const void* const norm = is_query ? args.query_norm : is_key ? args.key_norm : nullptr;
  if (norm != nullptr) norm_rows(values, pitch, rows, dims, static_cast<const T*>(norm), args.epsilon);
  const auto turned = [&](std::int32_t row, std::int32_t dim, T& low, T& high) {
    const float a = values[row * pitch + dim], b = values[row * pitch + dim + half];
    const std::int64_t angle = std::int64_t{places[row].position} * half + dim;
    const float cos = args.table.cos[angle], sin = args.table.sin[angle];
    low = from_float<T>(a * cos - b * sin), high = from_float<T>(b * cos + a * sin);
  };
  const std::int64_t of_head = std::int64_t{dims} * layout.block_size;
  const auto cached = [&](std::int32_t row) {
    return reinterpret_cast<T*>(args.kv.data) + (places[row].block * layout.kv_heads + (head - args.heads) % layout.kv_heads) * 2 * of_head;
  };
  if (is_query) {
    for_each(rows, half,
             [&](std::int32_t row, std::int32_t dim) { turned(row, dim, x[row * args.stride + dim], x[row * args.stride + dim + half]); });
  } else if (is_key) { // neighbouring threads: neighbouring rows
    const std::int32_t row = threadIdx.x % tile_rows;
    if (row >= rows) return;
    T* const keys = cached(row) + places[row].inside;
    for (std::int32_t dim = threadIdx.x / tile_rows; dim < half; dim += threads / tile_rows)
      turned(row, dim, keys[dim * layout.block_size], keys[(dim + half) * layout.block_size]);
  } else {
    for_each(rows, dims, [&](std::int32_t row, std::int32_t dim) {
      cached(row)[of_head + places[row].inside * dims + dim] = from_float<T>(values[row * pitch + dim]);
    });
  }
}

// The same for heads of 16, 32, 64, .. dimensions that can be read 16 bytes at once: a thread has 8 dimensions and those they turn with, of
// one row and of several heads, which share cos and sin.
constexpr int together = 4; // heads of a block

// What norm_rows does, for the 16 elements of each of `lanes` neighbouring threads.
template <class T>
__device__ void norm_pieces(eight<T>& low, eight<T>& high, std::int32_t lanes, const T* weight, std::int32_t first_dim, float epsilon) {
  float squares = 0;
#pragma unroll
  for (int k = 0; k < 8; ++k) squares += to_float(low.at[k]) * to_float(low.at[k]) + to_float(high.at[k]) * to_float(high.at[k]);
  for (std::int32_t distance = lanes / 2; distance > 0; distance /= 2) squares += __shfl_xor_sync(0xffffffffU, squares, distance);
  const float scale = rsqrtf(squares / static_cast<float>(lanes * 16) + epsilon);
  const eight<T> low_weight = load_eight(weight + first_dim), high_weight = load_eight(weight + first_dim + lanes * 8);
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    low.at[k] = from_float<T>(to_float(low.at[k]) * scale * to_float(low_weight.at[k]));
    high.at[k] = from_float<T>(to_float(high.at[k]) * scale * to_float(high_weight.at[k]));
  }
}

template <class T>
__device__ void turn(eight<T>& low, eight<T>& high, const float (&cos)[8], const float (&sin)[8]) {
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float a = to_float(low.at[k]), b = to_float(high.at[k]);
    low.at[k] = from_float<T>(a * cos[k] - b * sin[k]), high.at[k] = from_float<T>(b * cos[k] + a * sin[k]);
  }
}

template <class T>
__global__ void __launch_bounds__(threads) rope_kv_wide_kernel(rope_kv_args args) {
  __shared__ row_place places[threads];
  __shared__ T keys[threads * 16 + 2 * most_dims]; // [dim][row], two more a dimension so that they lie in other banks
  let_next_start();
  wait_for_previous();
  const kv_layout& layout = args.kv.layout;
  const std::int32_t dims = layout.head_dim, half = dims / 2, lanes = half / 8, rows = threads / lanes, pitch = rows + 2;
  const std::int32_t mine = threadIdx.x / lanes, dim = threadIdx.x % lanes * 8, row = blockIdx.x * rows + mine;
  const std::int32_t first_head = blockIdx.y * together, heads = args.heads + 2 * layout.kv_heads;
  const bool live = row < args.rows;
  T* const x = static_cast<T*>(args.qkv) + row * args.stride + dim;
  eight<T> low[together] = {}, high[together] = {};
#pragma unroll
  for (int h = 0; h < together; ++h) {
    if (!live || first_head + h >= heads) continue;
    low[h] = load_eight(x + (first_head + h) * dims), high[h] = load_eight(x + (first_head + h) * dims + half);
  }
  float cos[8] = {}, sin[8] = {};
  row_place place{};
  if (live) {
    place.position = args.places.positions[row], place.inside = place.position % layout.block_size;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      cos[k] = args.table.cos[std::int64_t{place.position} * half + dim + k];
      sin[k] = args.table.sin[std::int64_t{place.position} * half + dim + k];
    }
    if (first_head + together > args.heads) {
      const std::int64_t table = args.tables == nullptr ? row : args.tables[row];
      place.block = args.places.block_tables[table * args.places.table_stride + place.position / layout.block_size];
    }
  }
  if (dim == 0) places[mine] = place;
  const std::int64_t of_head = std::int64_t{dims} * layout.block_size;
  const auto cached = [&](const row_place& of, std::int32_t kv_head) {
    return reinterpret_cast<T*>(args.kv.data) + (of.block * layout.kv_heads + kv_head) * 2 * of_head;
  };
#pragma unroll
  for (int h = 0; h < together; ++h) {
    const std::int32_t head = first_head + h;
    if (head >= heads) break;
    const bool is_query = head < args.heads, is_key = !is_query && head < args.heads + layout.kv_heads;
    const void* const norm = is_query ? args.query_norm : is_key ? args.key_norm : nullptr;
    if (norm != nullptr) norm_pieces(low[h], high[h], lanes, static_cast<const T*>(norm), dim, args.epsilon);
    if (is_query || is_key) turn(low[h], high[h], cos, sin);
    if (is_query) {
      if (live) store_eight(x + head * dims, low[h]), store_eight(x + head * dims + half, high[h]);
    } else if (!is_key) {
      T* const values = cached(place, head - args.heads - layout.kv_heads) + of_head + place.inside * dims + dim;
      if (live) store_eight(values, low[h]), store_eight(values + half, high[h]);
    } else {
      __syncthreads(); // the last head's keys are written
#pragma unroll
      for (int k = 0; k < 8; ++k) keys[(dim + k) * pitch + mine] = low[h].at[k], keys[(dim + half + k) * pitch + mine] = high[h].at[k];
      __syncthreads();
      const std::int32_t of = threadIdx.x % rows; // neighbouring threads: neighbouring rows
      if (static_cast<std::int32_t>(blockIdx.x) * rows + of >= args.rows) continue;
      T* const to = cached(places[of], head - args.heads) + places[of].inside;
      for (std::int32_t d = threadIdx.x / rows; d < dims; d += lanes) to[d * layout.block_size] = keys[d * pitch + of];
    }
  }
}

bool can_be_wide(const rope_kv_args& args) {
  const std::int32_t lanes = args.kv.layout.head_dim / 16;
  return args.kv.layout.head_dim % 16 == 0 && (lanes & (lanes - 1)) == 0 && args.stride % 8 == 0 &&
         are_wide({args.qkv, args.kv.data, args.query_norm, args.key_norm});
}

} // namespace

void rope_and_kv_write(cuda::stream_handle on, const rope_kv_args& args) {
  constexpr const char* op = "rope_and_kv_write";
  const kv_layout& layout = args.kv.layout;
  require(args.rows >= 1, op, "at least 1 row");
  require(layout.head_dim % 2 == 0 && layout.head_dim >= 2 && layout.head_dim <= most_dims, op, "head_dim is even, at most 256");
  const bool wide = can_be_wide(args);
  const std::int32_t rows = wide ? threads / (layout.head_dim / 16) : tile_rows, heads = args.heads + 2 * layout.kv_heads;
  const dim3 grid(static_cast<unsigned>((args.rows + rows - 1) / rows),
                  static_cast<unsigned>(wide ? (heads + together - 1) / together : heads));
  launch_shape how(grid, threads, 0, args.overlaps);
  if (args.among_fused) how.split_for_rows(args.rows);
  with_half_type(layout.type, op, [&]<class T>() { launch(on, how, wide ? rope_kv_wide_kernel<T> : rope_kv_kernel<T>, args); });
}

} // namespace troupe::gpu
