#include "device/cuda/nvtx.hpp"

#include <nvtx3/nvToolsExt.h>

namespace troupe::cuda {

nvtx_range::nvtx_range(const char* name) { nvtxRangePushA(name); }
nvtx_range::~nvtx_range() { nvtxRangePop(); }

} // namespace troupe::cuda
