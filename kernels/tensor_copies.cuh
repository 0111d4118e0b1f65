// Boxes of tensors on their way into shared memory; their bytes count down a barrier. What lies outside the tensor arrives as zeros.
#pragma once

#include <cuda.h>

#include "kernels/mbarrier.cuh"

namespace troupe::gpu {

__device__ __forceinline__ void prefetch(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<std::uint64_t>(&map)) : "memory");
}

// `at`: coordinates of the box's first element, the contiguous dimension first.
__device__ __forceinline__ void tensor_copy(void* to, const CUtensorMap& map, const std::int32_t (&at)[2], std::uint64_t* barrier) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
                   shared_address(to)),
               "l"(&map), "r"(at[0]), "r"(at[1]), "r"(shared_address(barrier))
               : "memory");
}
__device__ __forceinline__ void tensor_copy(void* to, const CUtensorMap& map, const std::int32_t (&at)[3], std::uint64_t* barrier) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(
                   shared_address(to)),
               "l"(&map), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(shared_address(barrier))
               : "memory");
}
__device__ __forceinline__ void tensor_copy(void* to, const CUtensorMap& map, const std::int32_t (&at)[5], std::uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(
          shared_address(to)),
      "l"(&map), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]), "r"(shared_address(barrier))
      : "memory");
}

} // namespace troupe::gpu
