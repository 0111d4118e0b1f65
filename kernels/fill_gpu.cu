#include "kernels/fill_gpu.hpp"

#include "kernels/half_types.cuh"
#include "kernels/launch.cuh"

namespace troupe::gpu {
namespace {

// SplitMix64's output function (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
__device__ std::uint64_t mixed(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31);
}

template <class T>
__global__ void fill_kernel(T* data, std::int64_t count, float mean, float reach, std::uint64_t seed) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const std::uint64_t bits = mixed(seed + static_cast<std::uint64_t>(i + 1) * 0x9e3779b97f4a7c15U);
    const float unit = static_cast<float>(static_cast<std::int64_t>(bits) >> 40) * 0x1p-23F; // [-1, 1)
    data[i] = from_float<T>(mean + reach * unit);
  }
}

} // namespace

void fill_uniform(cuda::stream_handle on, const fill_uniform_args& args) {
  if (args.count == 0) return;
  with_half_type(args.type, "fill_uniform", [&]<class T>() {
    launch(on, {1024, 256}, fill_kernel<T>, static_cast<T*>(args.data), args.count, args.mean, args.reach, args.seed);
  });
}

} // namespace troupe::gpu
