#include "kernels/elementwise_gpu.hpp"
#include "kernels/half_types.cuh"
#include "kernels/launch.cuh"

namespace troupe::gpu {
namespace {

template <class T>
__global__ void swiglu_kernel(const T* gate_up, std::int64_t gate_up_stride, T* y, std::int64_t y_stride, std::int64_t columns) {
  let_next_start();
  wait_for_previous();
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= columns) return;
  const float gate = to_float(gate_up[blockIdx.y * gate_up_stride + i]), up = to_float(gate_up[blockIdx.y * gate_up_stride + columns + i]);
  y[blockIdx.y * y_stride + i] = from_float<T>(gate / (1.0F + __expf(-gate)) * up);
}

} // namespace

void swiglu(cuda::stream_handle on, const swiglu_args& args) {
  require(args.rows >= 1 && args.rows <= 65535 && args.columns >= 1, "swiglu", "1 to 65535 rows, and at least 1 column");
  const dim3 grid(static_cast<unsigned>((args.columns + 255) / 256), static_cast<unsigned>(args.rows));
  with_half_type(args.type, "swiglu", [&]<class T>() {
    launch(on, {grid, 256, 0, args.overlaps}, swiglu_kernel<T>, static_cast<const T*>(args.gate_up), args.gate_up_stride,
           static_cast<T*>(args.y), args.y_stride, args.columns);
  });
}

} // namespace troupe::gpu
