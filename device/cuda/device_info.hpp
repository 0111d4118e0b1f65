// What a result or a log line says of a GPU.
#pragma once

#include <cstdint>
#include <string>

namespace troupe::cuda {

struct device_info {
  std::string name;
  std::uint64_t memory_bytes = 0;
  std::string runtime_version; // of CUDA's library in this program, as in "13.0"
};

// Throws device_error when there is no such device.
device_info describe_device(int device);

} // namespace troupe::cuda
