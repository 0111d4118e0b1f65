#include "kernels/elementwise_gpu.hpp"
#include "kernels/half_types.cuh"
#include "kernels/launch.cuh"

namespace troupe::gpu {
namespace {

constexpr int threads = 256;

// A block a row; a thread one Piece after the other.
template <class Piece>
__global__ void embedding_kernel(const Piece* table, const token_id* tokens, std::int64_t pieces, Piece* y, std::int64_t y_stride) {
  let_next_start();
  wait_for_previous(); // the tokens may be the previous kernel's
  const Piece* from = table + tokens[blockIdx.x] * pieces;
  Piece* to = y + blockIdx.x * y_stride;
  for (std::int64_t i = threadIdx.x; i < pieces; i += threads) to[i] = from[i];
}

template <class Piece>
void start(cuda::stream_handle on, const embedding_args& args) {
  constexpr std::int64_t width = sizeof(Piece) / 2; // elements
  launch(on, {static_cast<unsigned>(args.rows), threads, 0, args.overlaps}, embedding_kernel<Piece>, static_cast<const Piece*>(args.table),
         args.tokens, args.columns / width, static_cast<Piece*>(args.y), args.y_stride / width);
}

} // namespace

void embedding(cuda::stream_handle on, const embedding_args& args) {
  require(args.type == dtype::bf16 || args.type == dtype::f16, "embedding", "elements are bf16 or f16");
  require(args.rows >= 1 && args.columns >= 1, "embedding", "rows and columns are at least 1");
  if ((args.columns | args.y_stride) % 8 == 0 && are_wide({args.table, args.y}))
    start<uint4>(on, args);
  else
    start<std::uint16_t>(on, args);
}

} // namespace troupe::gpu
