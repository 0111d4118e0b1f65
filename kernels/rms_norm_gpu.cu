#include "kernels/elementwise_gpu.hpp"
#include "kernels/half_types.cuh"
#include "kernels/launch.cuh"

namespace troupe::gpu {
namespace {

constexpr int threads = 256;

// A block a row. The sum is rounded before it is squared, as what later layers see of it is the rounded one.
template <class T>
__global__ void __launch_bounds__(threads) rms_norm_kernel(const T* x, const T* residual, T* sum, T* y, std::int64_t stride,
                                                           std::int64_t columns, const T* weight, float epsilon) {
  __shared__ float partial[threads / 32];
  let_next_start();
  wait_for_previous();
  const std::int64_t row = blockIdx.x * stride;
  const auto input = [&](std::int64_t i) {
    const float own = to_float(x[row + i]);
    return residual == nullptr ? own : to_float(from_float<T>(own + to_float(residual[row + i])));
  };
  float squares = 0;
  for (std::int64_t i = threadIdx.x; i < columns; i += threads) squares += input(i) * input(i);
  squares = warp_sum(squares);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = squares;
  __syncthreads();
  squares = 0;
  for (const float part : partial) squares += part;
  const float scale = rsqrtf(squares / static_cast<float>(columns) + epsilon);
  for (std::int64_t i = threadIdx.x; i < columns; i += threads) { // each thread the elements that it read: sum may be x
    const float value = input(i);
    y[row + i] = from_float<T>(value * scale * to_float(weight[i]));
    if (sum != nullptr) sum[row + i] = from_float<T>(value);
  }
}

} // namespace

void rms_norm(cuda::stream_handle on, const rms_norm_args& args) {
  require(args.rows >= 1 && args.columns >= 1, "rms_norm", "rows and columns are at least 1");
  with_half_type(args.type, "rms_norm", [&]<class T>() {
    launch(on, {static_cast<unsigned>(args.rows), threads, 0, args.overlaps}, rms_norm_kernel<T>, static_cast<const T*>(args.x),
           static_cast<const T*>(args.residual), static_cast<T*>(args.sum), static_cast<T*>(args.y), args.stride, args.columns,
           static_cast<const T*>(args.weight), args.epsilon);
  });
}

} // namespace troupe::gpu
