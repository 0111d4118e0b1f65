#include <algorithm>

#include "kernels/elementwise_gpu.hpp"
#include "kernels/half_types.cuh"
#include "kernels/launch.cuh"

namespace troupe::gpu {
namespace {

__global__ void embedding_kernel(const std::uint16_t* table, const token_id* tokens, std::int64_t columns, std::uint16_t* y,
                                 std::int64_t y_stride) {
  let_next_start();
  wait_for_previous(); // the tokens may be the previous kernel's
  const std::uint16_t* from = table + tokens[blockIdx.x] * columns;
  std::uint16_t* to = y + blockIdx.x * y_stride;
  for (std::int64_t i = threadIdx.x; i < columns; i += blockDim.x) to[i] = from[i];
}

} // namespace

void embedding(cuda::stream_handle on, const embedding_args& args) {
  require(args.type == dtype::bf16 || args.type == dtype::f16, "embedding", "elements are bf16 or f16");
  require(args.rows >= 1 && args.columns >= 1, "embedding", "rows and columns are at least 1");
  launch(on, {static_cast<unsigned>(args.rows), 256, 0, args.overlaps}, embedding_kernel, static_cast<const std::uint16_t*>(args.table),
         args.tokens, args.columns, static_cast<std::uint16_t*>(args.y), args.y_stride);
}

} // namespace troupe::gpu
