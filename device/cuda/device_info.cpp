#include "device/cuda/device_info.hpp"

#include <cuda_runtime.h>

#include "device/cuda/check.hpp"

namespace troupe::cuda {

device_info describe_device(int device) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  int version = 0;
  check(cudaRuntimeGetVersion(&version), "cudaRuntimeGetVersion");
  return {properties.name, properties.totalGlobalMem, std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10)};
}

} // namespace troupe::cuda
