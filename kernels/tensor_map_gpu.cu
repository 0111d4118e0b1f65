#include <cudaTypedefs.h>
#include <cuda_runtime.h>

#include <string>

#include "core/error.hpp"
#include "device/cuda/check.hpp"
#include "kernels/tensor_map.cuh"

namespace troupe::gpu {
namespace {

// From the driver at run time: nothing links against it.
PFN_cuTensorMapEncodeTiled_v12000 encoder() {
  static const PFN_cuTensorMapEncodeTiled_v12000 found = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult result{};
    cuda::check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &result),
                "cudaGetDriverEntryPointByVersion");
    if (result != cudaDriverEntryPointSuccess || entry == nullptr) throw device_error("this driver has no cuTensorMapEncodeTiled");
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(entry);
  }();
  return found;
}

template <int Rank>
struct tiling {
  cuuint64_t extents[Rank];
  cuuint64_t strides[Rank - 1]; // in bytes, of the dimensions from the second on
  cuuint32_t box[Rank];
};

template <int Rank>
CUtensorMap encode(dtype type, const void* data, const tiling<Rank>& t) {
  CUtensorMap map{};
  cuuint32_t steps[Rank];
  for (cuuint32_t& step : steps) step = 1;
  const CUresult status = encoder()(&map, type == dtype::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, Rank,
                                    const_cast<void*>(data), t.extents, t.strides, t.box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                    CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) throw device_error("cuTensorMapEncodeTiled failed with " + std::to_string(static_cast<int>(status)));
  return map;
}

} // namespace

weight_map map_weight(dtype type, const void* weight, std::int64_t rows, std::int64_t columns, bool plain, std::int32_t distance) {
  const auto row = static_cast<cuuint64_t>(columns) * 2, width = static_cast<cuuint64_t>(columns), d = static_cast<cuuint64_t>(distance);
  if (plain)
    return {encode<5>(type, weight, {{width, static_cast<cuuint64_t>(rows), 1, 1, 1}, {row, row, row, row}, {box_columns, 64, 1, 1, 1}}),
            4};
  const cuuint32_t groups = distance % 32 == 0 ? 4 : distance % 16 == 0 ? 2 : 1;
  return {encode<5>(type, weight,
                    {{width, 8, 2, d / 8, static_cast<cuuint64_t>(rows) / (2 * d)},
                     {row, d * row, 8 * row, 2 * d * row},
                     {box_columns, 8, 2, groups, 1}}),
          static_cast<std::int32_t>(groups)};
}

CUtensorMap map_rows(dtype type, const void* x, std::int64_t rows, std::int64_t columns, std::int64_t stride, std::int32_t box_rows) {
  return encode<2>(type, x,
                   {{static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)},
                    {static_cast<cuuint64_t>(stride) * 2},
                    {box_columns, static_cast<cuuint32_t>(box_rows)}});
}

} // namespace troupe::gpu
