#include "kernels/elementwise_gpu.hpp"
#include "kernels/half_types.cuh"
#include "kernels/launch.cuh"

namespace troupe::gpu {
namespace {

constexpr int threads = 256;

// Width elements a thread, in one access a part.
template <class T, int Width>
__global__ void sum_parts_kernel(const T* parts, std::int32_t part_count, std::int64_t count, T* y) {
  struct alignas(sizeof(T) * Width) piece {
    T at[Width];
  };
  let_next_start();
  wait_for_previous();
  const std::int64_t i = (std::int64_t{blockIdx.x} * threads + threadIdx.x) * Width;
  if (i >= count) return;
  float sums[Width] = {};
  for (std::int32_t part = 0; part < part_count; ++part) {
    const piece values = *reinterpret_cast<const piece*>(parts + part * count + i);
#pragma unroll
    for (int k = 0; k < Width; ++k) sums[k] += to_float(values.at[k]);
  }
  piece out;
#pragma unroll
  for (int k = 0; k < Width; ++k) out.at[k] = from_float<T>(sums[k]);
  *reinterpret_cast<piece*>(y + i) = out;
}

} // namespace

void sum_parts(cuda::stream_handle on, const sum_parts_args& args) {
  require(args.parts_count >= 1 && args.count >= 1, "sum_parts", "at least 1 part and 1 element");
  const bool wide = args.count % 8 == 0 && are_wide({args.parts, args.y});
  const std::int64_t block = threads * (wide ? 8 : 1), blocks = (args.count + block - 1) / block;
  require(blocks <= 0x7fffffff, "sum_parts", "too many elements");
  with_half_type(args.type, "sum_parts", [&]<class T>() {
    launch(on, {static_cast<unsigned>(blocks), threads, 0, args.overlaps}, wide ? sum_parts_kernel<T, 8> : sum_parts_kernel<T, 1>,
           static_cast<const T*>(args.parts), args.parts_count, args.count, static_cast<T*>(args.y));
  });
}

} // namespace troupe::gpu
