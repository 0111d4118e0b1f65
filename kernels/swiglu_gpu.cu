#include "kernels/elementwise_gpu.hpp"
#include "kernels/half_types.cuh"
#include "kernels/launch.cuh"

namespace troupe::gpu {
namespace {

constexpr int threads = 256;

// Width elements a thread, in one access each of gates, ups and results.
template <class T, int Width>
__global__ void swiglu_kernel(const T* gate_up, std::int64_t gate_up_stride, T* y, std::int64_t y_stride, std::int64_t columns) {
  struct alignas(sizeof(T) * Width) piece {
    T at[Width];
  };
  let_next_start();
  wait_for_previous();
  const std::int64_t i = (std::int64_t{blockIdx.x} * threads + threadIdx.x) * Width;
  if (i >= columns) return;
  const T* const from = gate_up + blockIdx.y * gate_up_stride + i;
  const piece gates = *reinterpret_cast<const piece*>(from), ups = *reinterpret_cast<const piece*>(from + columns);
  piece out;
#pragma unroll
  for (int k = 0; k < Width; ++k) {
    const float gate = to_float(gates.at[k]);
    out.at[k] = from_float<T>(gate / (1.0F + __expf(-gate)) * to_float(ups.at[k]));
  }
  *reinterpret_cast<piece*>(y + blockIdx.y * y_stride + i) = out;
}

} // namespace

void swiglu(cuda::stream_handle on, const swiglu_args& args) {
  require(args.rows >= 1 && args.rows <= 65535 && args.columns >= 1, "swiglu", "1 to 65535 rows, and at least 1 column");
  const bool wide = (args.columns | args.gate_up_stride | args.y_stride) % 8 == 0 && are_wide({args.gate_up, args.y});
  const std::int64_t block = threads * (wide ? 8 : 1);
  const dim3 grid(static_cast<unsigned>((args.columns + block - 1) / block), static_cast<unsigned>(args.rows));
  with_half_type(args.type, "swiglu", [&]<class T>() {
    launch(on, {grid, threads, 0, args.overlaps}, wide ? swiglu_kernel<T, 8> : swiglu_kernel<T, 1>, static_cast<const T*>(args.gate_up),
           args.gate_up_stride, static_cast<T*>(args.y), args.y_stride, args.columns);
  });
}

} // namespace troupe::gpu
