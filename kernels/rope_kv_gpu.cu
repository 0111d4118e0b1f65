#include "kernels/elementwise_gpu.hpp"
#include "kernels/half_types.cuh"
#include "kernels/launch.cuh"

namespace troupe::gpu {
namespace {

// A block a row; a thread a pair of dimensions of one head.
template <class T>
__global__ void rope_kv_kernel(T* qkv, std::int64_t stride, std::int32_t heads, row_places places, rotary table, T* kv, kv_layout layout) {
  let_next_start();
  wait_for_previous();
  T* const row = qkv + blockIdx.x * stride;
  const std::int32_t position = places.positions[blockIdx.x], half = layout.head_dim / 2;
  const std::int64_t of_head = std::int64_t{layout.head_dim} * layout.block_size;
  const std::int64_t block = places.block_tables[blockIdx.x * places.table_stride + position / layout.block_size];
  const std::int32_t inside = position % layout.block_size;
  for (std::int32_t i = threadIdx.x; i < (heads + 2 * layout.kv_heads) * half; i += blockDim.x) {
    const std::int32_t head = i / half, dim = i % half;
    T* const x = row + head * layout.head_dim + dim;
    const float a = to_float(x[0]), b = to_float(x[half]);
    const bool turns = head < heads + layout.kv_heads;
    const float cos = turns ? table.cos[std::int64_t{position} * half + dim] : 1.0F;
    const float sin = turns ? table.sin[std::int64_t{position} * half + dim] : 0.0F;
    const T low = from_float<T>(a * cos - b * sin), high = from_float<T>(b * cos + a * sin);
    if (head < heads) {
      x[0] = low, x[half] = high;
      continue;
    }
    const std::int32_t kv_head = (head - heads) % layout.kv_heads;
    T* const keys = kv + (block * layout.kv_heads + kv_head) * 2 * of_head;
    if (turns) {
      keys[dim * layout.block_size + inside] = low;
      keys[(dim + half) * layout.block_size + inside] = high;
    } else {
      keys[of_head + inside * layout.head_dim + dim] = low;
      keys[of_head + inside * layout.head_dim + dim + half] = high;
    }
  }
}

} // namespace

void rope_and_kv_write(cuda::stream_handle on, const rope_kv_args& args) {
  require(args.rows >= 1 && args.kv.layout.head_dim % 2 == 0, "rope_and_kv_write", "at least 1 row, and an even head_dim");
  with_half_type(args.kv.layout.type, "rope_and_kv_write", [&]<class T>() {
    launch(on, {static_cast<unsigned>(args.rows), 256, 0, args.overlaps}, rope_kv_kernel<T>, static_cast<T*>(args.qkv), args.stride,
           args.heads, args.places, args.table, reinterpret_cast<T*>(args.kv.data), args.kv.layout);
  });
}

} // namespace troupe::gpu
