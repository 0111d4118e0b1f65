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

template <std::size_t Rank>
CUtensorMap make_tensor_map(const tensor_box<Rank>& of) {
  static const encode_function encode = find_encode();
  std::array<std::uint64_t, Rank - 1> strides = of.strides; // bytes
  for (std::uint64_t& stride : strides) stride *= 2;
  std::array<std::uint32_t, Rank> steps;
  steps.fill(1);
  CUtensorMap map{};
  const CUresult result = encode(&map, of.type == dtype::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, Rank,
                                 const_cast<void*>(of.data), of.sizes.data(), strides.data(), of.box.data(), steps.data(),
                                 CU_TENSOR_MAP_INTERLEAVE_NONE, of.swizzle, of.promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) throw device_error("cuTensorMapEncodeTiled: CUDA driver error " + std::to_string(static_cast<int>(result)));
  return map;
}

template CUtensorMap make_tensor_map(const tensor_box<2>&);
template CUtensorMap make_tensor_map(const tensor_box<3>&);
template CUtensorMap make_tensor_map(const tensor_box<5>&);

} // namespace troupe::gpu
