#include "kernels/plain_linear_gpu.hpp"

#include "kernels/half_types.cuh"
#include "kernels/launch.cuh"

namespace troupe::gpu {
namespace {

constexpr int edge = 16; // of a tile of y, and columns per step

template <class T>
__global__ void __launch_bounds__(edge * edge) plain_linear_kernel(plain_linear_args a) {
  __shared__ float xs[edge][edge + 1], ws[edge][edge + 1];
  let_next_start();
  wait_for_previous();
  const int tx = static_cast<int>(threadIdx.x) % edge, ty = static_cast<int>(threadIdx.x) / edge;
  const T* const x = static_cast<const T*>(a.x);
  const T* const w = static_cast<const T*>(a.weight);
  const std::int64_t first_out = std::int64_t{blockIdx.x} * edge, first_row = std::int64_t{blockIdx.y} * edge;
  const std::int64_t own_out = first_out + tx, own_row = first_row + ty;
  float sum = 0;
  for (std::int64_t start = 0; start < a.columns; start += edge) {
    const std::int64_t c = start + tx;
    xs[ty][tx] = own_row < a.rows && c < a.columns ? to_float(x[own_row * a.x_stride + c]) : 0.0F;
    const std::int64_t o = first_out + ty;
    ws[ty][tx] = o < a.out_rows && c < a.columns ? to_float(w[o * a.columns + c]) : 0.0F;
    __syncthreads();
    for (int i = 0; i < edge; ++i) sum += xs[ty][i] * ws[tx][i];
    __syncthreads();
  }
  if (own_out >= a.out_rows || own_row >= a.rows) return;
  if (a.bias != nullptr) sum += to_float(static_cast<const T*>(a.bias)[own_out]);
  const std::int64_t at = own_row * a.y_stride + own_out;
  if (a.residual != nullptr) sum += to_float(static_cast<const T*>(a.residual)[at]);
  if (a.to_f32)
    static_cast<float*>(a.y)[at] = sum;
  else
    static_cast<T*>(a.y)[at] = from_float<T>(sum);
}

} // namespace

void plain_linear(cuda::stream_handle on, const plain_linear_args& args) {
  require(args.rows >= 1 && args.out_rows >= 1 && args.columns >= 1, "plain linear", "at least one row, output and column");
  with_half_type(args.type, "plain linear", [&]<class T>() {
    const dim3 grid(static_cast<unsigned>((args.out_rows + edge - 1) / edge), static_cast<unsigned>((args.rows + edge - 1) / edge));
    launch(on, {grid, edge * edge}, plain_linear_kernel<T>, args);
  });
}

} // namespace troupe::gpu
