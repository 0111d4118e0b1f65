// Random numbers straight into device memory: dummy weights.
#pragma once

#include <cstdint>

#include "core/dtype.hpp"
#include "device/cuda/handles.hpp"

namespace troupe::gpu {

// data[i], bf16 or f16, uniform in [mean - reach, mean + reach), a function of seed and i alone.
struct fill_uniform_args {
  dtype type = dtype::bf16;
  void* data = nullptr;
  std::int64_t count = 0;
  float mean = 0;
  float reach = 1;
  std::uint64_t seed = 0;
};
void fill_uniform(cuda::stream_handle on, const fill_uniform_args& args);

} // namespace troupe::gpu
