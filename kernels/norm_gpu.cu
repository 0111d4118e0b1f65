#include "kernels/elementwise_gpu.hpp"
#include "kernels/half_types.cuh"
#include "kernels/launch.cuh"

namespace troupe::gpu {
namespace {

constexpr int threads = 256;
constexpr std::int64_t most_columns = 48 * 1024; // of f32 in a block's shared memory

enum class norm_kind { rms, layer };

// The sum of x over the block. `partial` is free again when all threads have passed the next barrier.
__device__ float block_sum(float x, float* partial) {
  x = warp_sum(x);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < threads / 32; ++i) sum += partial[i];
  return sum;
}

// A block a row, which stays in shared memory in between: each thread the elements that it read, so that sum may be x or residual. The sum
// is rounded before it is squared, as what later layers see of it is the rounded one. Wide: 16 bytes at once.
template <class T, norm_kind Kind, int Width>
__global__ void __launch_bounds__(threads) norm_kernel(norm_args args) {
  extern __shared__ float values[];
  __shared__ float partial[2][threads / 32];
  struct alignas(sizeof(T) * Width) piece {
    T at[Width];
  };
  const auto piece_at = [](const void* of, std::int64_t i) { return *reinterpret_cast<const piece*>(static_cast<const T*>(of) + i); };
  let_next_start();
  wait_for_previous();
  const std::int64_t row = blockIdx.x * args.stride, source = args.from == nullptr ? row : args.from[blockIdx.x] * args.stride;
  float sum = 0;
  for (std::int64_t i = threadIdx.x * Width; i < args.columns; i += threads * Width) {
    piece x = piece_at(args.x, source + i);
    if (args.residual != nullptr) {
      const piece other = piece_at(args.residual, row + i);
#pragma unroll
      for (int k = 0; k < Width; ++k) x.at[k] = from_float<T>(to_float(x.at[k]) + to_float(other.at[k]));
    }
    if (args.sum != nullptr) *reinterpret_cast<piece*>(static_cast<T*>(args.sum) + row + i) = x;
#pragma unroll
    for (int k = 0; k < Width; ++k) {
      const float value = to_float(x.at[k]);
      values[i + k] = value;
      sum += Kind == norm_kind::rms ? value * value : value;
    }
  }
  const float columns = static_cast<float>(args.columns);
  float mean = 0;
  sum = block_sum(sum, partial[0]);
  if constexpr (Kind == norm_kind::layer) {
    mean = sum / columns;
    sum = 0;
    for (std::int64_t i = threadIdx.x * Width; i < args.columns; i += threads * Width) {
#pragma unroll
      for (int k = 0; k < Width; ++k) sum += (values[i + k] - mean) * (values[i + k] - mean);
    }
    sum = block_sum(sum, partial[1]);
  }
  const float scale = rsqrtf(sum / columns + args.epsilon);
  for (std::int64_t i = threadIdx.x * Width; i < args.columns; i += threads * Width) {
    const piece weight = piece_at(args.weight, i);
    piece y, bias;
    if (args.bias != nullptr) bias = piece_at(args.bias, i);
#pragma unroll
    for (int k = 0; k < Width; ++k) {
      const float value = (values[i + k] - mean) * scale * to_float(weight.at[k]);
      y.at[k] = from_float<T>(args.bias == nullptr ? value : value + to_float(bias.at[k]));
    }
    *reinterpret_cast<piece*>(static_cast<T*>(args.y) + row + i) = y;
  }
}

template <norm_kind Kind>
void start(cuda::stream_handle on, const norm_args& args, const char* op) {
  require(args.rows >= 1 && args.columns >= 1 && args.columns <= most_columns, op, "at least 1 row, and 1 to 49152 columns");
  require(args.from == nullptr || (args.residual == nullptr && args.sum == nullptr), op, "chosen rows come without residual and sum");
  const bool wide =
      args.columns % 8 == 0 && args.stride % 8 == 0 && are_wide({args.x, args.residual, args.sum, args.y, args.weight, args.bias});
  with_half_type(args.type, op, [&]<class T>() {
    launch(on, {static_cast<unsigned>(args.rows), threads, static_cast<std::size_t>(args.columns) * sizeof(float), args.overlaps},
           wide ? norm_kernel<T, Kind, 8> : norm_kernel<T, Kind, 1>, args);
  });
}

} // namespace

void rms_norm(cuda::stream_handle on, const norm_args& args) {
  require(args.bias == nullptr, "rms_norm", "there is no bias");
  start<norm_kind::rms>(on, args, "rms_norm");
}

void layer_norm(cuda::stream_handle on, const norm_args& args) { start<norm_kind::layer>(on, args, "layer_norm"); }

} // namespace troupe::gpu
