#include "kernels/plain_attention_gpu.hpp"

#include "kernels/half_types.cuh"
#include "kernels/launch.cuh"

namespace troupe::gpu {
namespace {

constexpr const char* op = "plain attention";
constexpr int threads = 128; // also the positions of a tile
constexpr int max_head_dim = 2 * threads;

template <class Reduce>
__device__ float block_reduce(float x, float* shared, const Reduce& reduce) {
  for (int distance = 16; distance > 0; distance /= 2) x = reduce(x, __shfl_xor_sync(0xffffffffU, x, distance));
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  x = shared[0];
  for (int i = 1; i < threads / 32; ++i) x = reduce(x, shared[i]);
  __syncthreads();
  return x;
}

// A block a row and head. Each thread scores one position of a tile, then mixes up to two dimensions of its values.
template <class T>
__global__ void __launch_bounds__(threads) plain_attention_kernel(plain_attention_args a) {
  __shared__ float query[max_head_dim];
  __shared__ float weights[threads];
  __shared__ float scratch[threads / 32];
  let_next_start();
  wait_for_previous();
  const std::int32_t row = static_cast<std::int32_t>(blockIdx.x), head = static_cast<std::int32_t>(blockIdx.y);
  const kv_layout layout = a.kv.layout;
  const std::int32_t dim = layout.head_dim, block_size = layout.block_size, thread = static_cast<std::int32_t>(threadIdx.x);
  const std::int64_t of_head = std::int64_t{dim} * block_size;
  const std::int32_t kv_head = head / (a.heads / layout.kv_heads);
  const std::int32_t position = a.places.positions[row];
  const std::int32_t* table = a.places.block_tables + (a.tables != nullptr ? a.tables[row] : row) * a.places.table_stride;
  const T* const cache = reinterpret_cast<const T*>(a.kv.data);
  const T* const q = static_cast<const T*>(a.query) + row * a.query_stride + std::int64_t{head} * dim;
  for (std::int32_t i = thread; i < dim; i += threads) query[i] = to_float(q[i]) * a.scale;
  __syncthreads();

  float top = -INFINITY, sum = 0, mix[2] = {};
  const std::int32_t first = a.window > 0 ? max(0, position - a.window + 1) : 0;
  for (std::int32_t start = first; start <= position; start += threads) {
    const std::int32_t own = start + thread;
    float score = -INFINITY;
    if (own <= position) {
      const T* keys = cache + (std::int64_t{table[own / block_size]} * layout.kv_heads + kv_head) * 2 * of_head + own % block_size;
      score = 0;
      for (std::int32_t i = 0; i < dim; ++i) score += query[i] * to_float(keys[std::int64_t{i} * block_size]);
    }
    const float tile_top = block_reduce(score, scratch, [](float x, float y) { return fmaxf(x, y); });
    const float new_top = fmaxf(top, tile_top);
    const float weight = own <= position ? expf(score - new_top) : 0.0F;
    const float shrink = expf(top - new_top); // 0 in the first tile
    weights[thread] = weight;
    sum = sum * shrink + block_reduce(weight, scratch, [](float x, float y) { return x + y; });
    top = new_top;
    const std::int32_t count = min(threads, position - start + 1);
    for (int part = 0; part < 2; ++part) {
      const std::int32_t d = thread + part * threads;
      if (d >= dim) break;
      mix[part] *= shrink;
      for (std::int32_t i = 0; i < count; ++i) {
        const std::int32_t at = start + i;
        const T* values = cache + (std::int64_t{table[at / block_size]} * layout.kv_heads + kv_head) * 2 * of_head + of_head;
        mix[part] += weights[i] * to_float(values[std::int64_t{at % block_size} * dim + d]);
      }
    }
    __syncthreads(); // the weights have been used
  }
  T* const out = static_cast<T*>(a.output) + row * a.output_stride + std::int64_t{head} * dim;
  for (int part = 0; part < 2; ++part) {
    const std::int32_t d = thread + part * threads;
    if (d < dim) out[d] = from_float<T>(mix[part] / sum);
  }
}

} // namespace

void plain_attention(cuda::stream_handle on, const plain_attention_args& args) {
  const kv_layout& layout = args.kv.layout;
  require(args.rows >= 1, op, "at least 1 row");
  require(layout.head_dim >= 1 && layout.head_dim <= max_head_dim, op, "head_dim is at most 256");
  require(layout.kv_heads >= 1 && args.heads % layout.kv_heads == 0, op, "heads are a multiple of the KV heads");
  with_half_type(layout.type, op, [&]<class T>() {
    launch(on, {dim3(static_cast<unsigned>(args.rows), static_cast<unsigned>(args.heads)), threads}, plain_attention_kernel<T>, args);
  });
}

} // namespace troupe::gpu
