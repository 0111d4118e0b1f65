// The only launcher of kernels: a stream is always a parameter, and every launch is checked.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <source_location>
#include <type_traits>
#include <utility>

#include "device/cuda/check.hpp"
#include "device/cuda/handles.hpp"

namespace troupe::gpu {

constexpr std::int32_t gemv_rows = 2; // most rows of the path to a product that takes W through registers

struct launch_shape {
  // `overlaps`: programmatic dependent launch, the kernel may start before the stream's previous one is done, and calls wait_for_previous()
  // before it touches what that one writes. One launch without it ends the overlap of a chain.
  launch_shape(dim3 grid_size, unsigned block_size, std::size_t dynamic_shared = 0, bool may_overlap = false,
               std::source_location at = std::source_location::current())
      : grid(grid_size), block(block_size), shared_bytes(dynamic_shared), overlaps(may_overlap), where(at) {}

  dim3 grid;
  dim3 block;
  std::size_t shared_bytes;
  bool overlaps;
  std::source_location where;
  bool spares_l1 = false; // takes little shared memory, and leaves the L1 cache the rest
  unsigned cluster = 1;   // blocks that run side by side and reach each other's shared memory; divides the grid

  // A kernel of steps of so many rows. With few, weights go to registers, and a load on its way there lies in the L1 cache meanwhile.
  launch_shape& split_for_rows(std::int64_t rows) {
    spares_l1 = rows <= gemv_rows;
    return *this;
  }
};

// Of the 256 KiB of a multiprocessor shared memory gets 228, or where a kernel spares the L1 cache 164: CUDA rounds a percentage of the 228
// up to the next split that there is, here from 132.2.
constexpr std::size_t sparing_shared = 164 * 1024;
constexpr unsigned most_percent = 100, sparing_percent = 58;

template <class... Params, class... Args>
void launch(cuda::stream_handle on, const launch_shape& shape, void (*kernel)(Params...), Args&&... args) {
  const auto* const function = reinterpret_cast<const void*>(kernel);
  constexpr std::size_t without_asking = 16 * 1024; // of shared memory, beside a kernel's static 32 KiB
  if (shape.shared_bytes > without_asking) {
    cuda::check(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shape.shared_bytes)),
                "cudaFuncSetAttribute", shape.where);
  }
  if (shape.cluster > 8) {
    cuda::check(cudaFuncSetAttribute(function, cudaFuncAttributeNonPortableClusterSizeAllowed, 1), "cudaFuncSetAttribute", shape.where);
  }
  cudaLaunchAttribute attributes[3]{};
  unsigned count = 0;
  // One split between L1 cache and shared memory for all layers of a step: a multiprocessor has to run empty before it takes a kernel with
  // another.
  attributes[count].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
  attributes[count++].val.sharedMemCarveout = shape.spares_l1 ? sparing_percent : most_percent;
  if (shape.overlaps) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {shape.cluster, 1, 1};
  }
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = on;
  config.attrs = attributes;
  config.numAttrs = count;
  cuda::check(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(std::forward<Args>(args))...), "cudaLaunchKernelEx", shape.where);
}

// The next kernel of a chain may be set up from here on.
__device__ __forceinline__ void let_next_start() { asm volatile("griddepcontrol.launch_dependents;"); }
// Everything that the previous kernel of a chain wrote is visible from here on. Each kernel of a chain calls it, so that all earlier ones
// are done too.
__device__ __forceinline__ void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

} // namespace troupe::gpu
