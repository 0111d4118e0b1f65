// Descriptions of tensors in device memory for the GPU's copy engine.
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>

#include "core/dtype.hpp"

namespace troupe::gpu {

// A tensor of three dimensions, the first contiguous, and the box that one copy brings.
struct tensor_box {
  dtype type = dtype::bf16;   // or f16
  const void* data = nullptr; // 16-byte aligned
  std::array<std::uint64_t, 3> sizes = {};
  std::array<std::uint64_t, 2> strides = {}; // elements from one to the next of the second and third dimension; multiples of 8
  std::array<std::uint32_t, 3> box = {};     // at most 256 each; the first as wide as the swizzle
  CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_NONE;
};

// Throws device_error when the driver refuses it.
CUtensorMap make_tensor_map(const tensor_box& of);

} // namespace troupe::gpu
