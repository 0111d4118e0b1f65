#include "kernels/elementwise_gpu.hpp"
#include "kernels/half_types.cuh"
#include "kernels/launch.cuh"

namespace troupe::gpu {
namespace {

constexpr int threads = 256;

// A thread an element of `pieces` in each row (y) of each part (z).
__global__ void join_parts_kernel(const float4* parts, std::int64_t pieces, float4* y) {
  let_next_start();
  wait_for_previous();
  const std::int64_t i = std::int64_t{blockIdx.x} * threads + threadIdx.x;
  if (i >= pieces) return;
  const std::int64_t row = blockIdx.y, part = blockIdx.z;
  y[(row * gridDim.z + part) * pieces + i] = parts[(part * gridDim.y + row) * pieces + i];
}

} // namespace

void join_parts(cuda::stream_handle on, const join_parts_args& args) {
  require(args.rows >= 1 && args.rows <= 65535 && args.part_count >= 1 && args.part_count <= 65535, "join_parts",
          "1 to 65535 rows and parts");
  require(args.columns >= 4 && args.columns % 4 == 0 && are_wide({args.parts, args.y}), "join_parts", "whole pieces of 16 bytes");
  const std::int64_t pieces = args.columns / 4;
  const dim3 grid(static_cast<unsigned>((pieces + threads - 1) / threads), static_cast<unsigned>(args.rows),
                  static_cast<unsigned>(args.part_count));
  launch(on, launch_shape(grid, threads, 0, args.overlaps).split_for_rows(args.rows), join_parts_kernel,
         reinterpret_cast<const float4*>(args.parts), pieces, reinterpret_cast<float4*>(args.y));
}

} // namespace troupe::gpu
