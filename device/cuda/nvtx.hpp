// Named ranges of host time for profilers; costs next to nothing when none is attached.
#pragma once

namespace troupe::cuda {

class nvtx_range {
 public:
  explicit nvtx_range(const char* name);
  ~nvtx_range();
  nvtx_range(const nvtx_range&) = delete;
  nvtx_range& operator=(const nvtx_range&) = delete;
};

} // namespace troupe::cuda
