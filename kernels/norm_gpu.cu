#include <algorithm>

#include "kernels/elementwise_gpu.hpp"
#include "kernels/half_types.cuh"
#include "kernels/launch.cuh"

namespace troupe::gpu {
namespace {

constexpr int most_threads = 512;
constexpr std::int64_t most_columns = 1 << 20;

enum class norm_kind { rms, layer };

// The sum of x over the block. `partial` is free again when all threads have passed the next barrier.
__device__ float block_sum(float x, float* partial) {
  const int warps = static_cast<int>(blockDim.x) / 32, lane = threadIdx.x % 32;
  x = warp_sum(x);
  if (lane == 0) partial[threadIdx.x / 32] = x;
  __syncthreads();
  return warp_sum(lane < warps ? partial[lane] : 0.0F);
}

// A block a row. Each thread reads its elements but the first anew in every pass, from `sum` when there is one, so that sum may be x or
// residual: little shared memory leaves room for the products before and behind. The sum is rounded before it is squared, as what later
// layers see of it is the rounded one. Wide: 16 bytes at once.
template <class T, norm_kind Kind, int Width>
__global__ void __launch_bounds__(most_threads) norm_kernel(norm_args args) {
  __shared__ float partial[2][most_threads / 32];
  struct alignas(sizeof(T) * Width) piece {
    T at[Width];
  };
  const auto piece_at = [](const void* of, std::int64_t i) { return *reinterpret_cast<const piece*>(static_cast<const T*>(of) + i); };
  let_next_start();
  // A thread's first elements stay in registers, and those of the weight are asked for early: no kernel writes them, and they come from
  // far.
  const std::int64_t mine = threadIdx.x * Width;
  piece first{}, first_weight{};
  if (mine < args.columns) first_weight = piece_at(args.weight, mine);
  wait_for_previous();
  const std::int64_t row = blockIdx.x * args.stride, source = args.from == nullptr ? row : args.from[blockIdx.x] * args.stride;
  const auto each_piece = [&](const auto& body) {
    for (std::int64_t i = threadIdx.x * Width; i < args.columns; i += blockDim.x * Width) body(i);
  };
  const auto summed_at = [&](std::int64_t i) {
    piece x = piece_at(args.x, source + i);
    if (args.residual == nullptr) return x;
    const piece other = piece_at(args.residual, row + i);
#pragma unroll
    for (int k = 0; k < Width; ++k) x.at[k] = from_float<T>(to_float(x.at[k]) + to_float(other.at[k]));
    return x;
  };
  const auto again_at = [&](std::int64_t i) {
    if (i == mine) return first;
    return args.sum != nullptr ? piece_at(args.sum, row + i) : summed_at(i);
  };
  float sum = 0;
  each_piece([&](std::int64_t i) {
    const piece x = summed_at(i);
    if (i == mine) first = x;
    if (args.sum != nullptr) *reinterpret_cast<piece*>(static_cast<T*>(args.sum) + row + i) = x;
#pragma unroll
    for (int k = 0; k < Width; ++k) sum += Kind == norm_kind::rms ? to_float(x.at[k]) * to_float(x.at[k]) : to_float(x.at[k]);
  });
  const float columns = static_cast<float>(args.columns);
  float mean = 0;
  sum = block_sum(sum, partial[0]);
  if constexpr (Kind == norm_kind::layer) {
    mean = sum / columns;
    sum = 0;
    each_piece([&](std::int64_t i) {
      const piece x = again_at(i);
#pragma unroll
      for (int k = 0; k < Width; ++k) sum += (to_float(x.at[k]) - mean) * (to_float(x.at[k]) - mean);
    });
    sum = block_sum(sum, partial[1]);
  }
  const float scale = rsqrtf(sum / columns + args.epsilon);
  each_piece([&](std::int64_t i) {
    const piece x = again_at(i), weight = i == mine ? first_weight : piece_at(args.weight, i);
    piece y, bias;
    if (args.bias != nullptr) bias = piece_at(args.bias, i);
#pragma unroll
    for (int k = 0; k < Width; ++k) {
      const float value = (to_float(x.at[k]) - mean) * scale * to_float(weight.at[k]);
      y.at[k] = from_float<T>(args.bias == nullptr ? value : value + to_float(bias.at[k]));
    }
    *reinterpret_cast<piece*>(static_cast<T*>(args.y) + blockIdx.x * args.y_stride + i) = y;
  });
}

template <norm_kind Kind>
void start(cuda::stream_handle on, const norm_args& args, const char* op) {
  require(args.rows >= 1 && args.columns >= 1 && args.columns <= most_columns, op, "at least 1 row, and 1 to 1048576 columns");
  require(args.from == nullptr || (args.residual == nullptr && args.sum == nullptr), op, "chosen rows come without residual and sum");
  const bool wide =
      (args.columns | args.stride | args.y_stride) % 8 == 0 && are_wide({args.x, args.residual, args.sum, args.y, args.weight, args.bias});
  with_half_type(args.type, op, [&]<class T>() {
    const std::int64_t warps = (args.columns / (wide ? 8 : 1) + 31) / 32;
    const auto threads = static_cast<unsigned>(std::clamp<std::int64_t>(32 * warps, 32, most_threads));
    launch(on, {static_cast<unsigned>(args.rows), threads, 0, args.overlaps}, wide ? norm_kernel<T, Kind, 8> : norm_kernel<T, Kind, 1>,
           args);
  });
}

} // namespace

void rms_norm(cuda::stream_handle on, const norm_args& args) {
  require(args.bias == nullptr, "rms_norm", "there is no bias");
  start<norm_kind::rms>(on, args, "rms_norm");
}

void layer_norm(cuda::stream_handle on, const norm_args& args) { start<norm_kind::layer>(on, args, "layer_norm"); }

} // namespace troupe::gpu
