#include "kernels/cuda/tensor_map.hpp"

#include <cuda_runtime_api.h>

#include <string>

#include "core/error.hpp"
#include "device/cuda/check.hpp"

namespace troupe::gpu {
namespace {

using encode_function = decltype(&cuTensorMapEncodeTiled);

// By the runtime, so that the program needs no link to the driver's library, which a machine without a GPU lacks.
encode_function find_encode() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult state = cudaDriverEntryPointSymbolNotFound;
  cuda::check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &state),
              "cudaGetDriverEntryPointByVersion");
  if (state != cudaDriverEntryPointSuccess || found == nullptr) throw device_error("the CUDA driver has no cuTensorMapEncodeTiled");
  return reinterpret_cast<encode_function>(found);
}

} // namespace

CUtensorMap make_tensor_map(const tensor_box& of) {
  static const encode_function encode = find_encode();
  const std::uint64_t strides[2] = {of.strides[0] * 2, of.strides[1] * 2}; // bytes
  const std::uint32_t steps[3] = {1, 1, 1};
  CUtensorMap map{};
  const CUresult result = encode(&map, of.type == dtype::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 3,
                                 const_cast<void*>(of.data), of.sizes.data(), strides, of.box.data(), steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                 of.swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) throw device_error("cuTensorMapEncodeTiled: CUDA driver error " + std::to_string(static_cast<int>(result)));
  return map;
}

} // namespace troupe::gpu
