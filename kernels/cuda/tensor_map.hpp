// Descriptions of tensors in device memory for the GPU's copy engine.
#pragma once

#include <cuda.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/dtype.hpp"

namespace troupe::gpu {

// A tensor of 2, 3 or 5 dimensions, the first contiguous, and the box that one copy brings.
template <std::size_t Rank>
struct tensor_box {
  dtype type = dtype::bf16;   // or f16
  const void* data = nullptr; // 16-byte aligned
  std::array<std::uint64_t, Rank> sizes = {};
  std::array<std::uint64_t, Rank - 1> strides = {}; // elements from one to the next of the second dimension and on; multiples of 8
  std::array<std::uint32_t, Rank> box = {};         // at most 256 each; the first as wide as the swizzle
  CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
  CUtensorMapL2promotion promotion = CU_TENSOR_MAP_L2_PROMOTION_NONE; // reading ahead costs streams of weights 2%: docs/gpu-experiments.md
};

// Throws device_error when the driver refuses it.
template <std::size_t Rank>
CUtensorMap make_tensor_map(const tensor_box<Rank>& of);

} // namespace troupe::gpu
