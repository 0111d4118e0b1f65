// How long sums over the GPUs of a group take at best: NCCL's, and those of our own beside it, in graphs.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "models/gpu_rank.hpp"

namespace troupe {

// Seconds of one call, in a graph of many; 0 where it cannot be.
struct sum_ceiling {
  std::size_t bytes = 0;    // of each rank's bf16 rows, 4096 columns each
  double nccl = 0;          // all-reduce in place
  double nccl_and_norm = 0; // the same and a kernel for residual and RMSNorm
  double own = 0;           // with residual
  double own_and_norm = 0;  // with residual and RMSNorm
};

// From 8 KiB to 64 MiB, in powers of two. All ranks of the group call it at once, each on the current device of its thread, and get their
// own figures. `log`: why there are none of our own. Throws as gpu_rank_sums::open() does.
std::vector<sum_ceiling> measure_sums(const gpu_rank& rank, const std::function<void(const std::string&)>& log);

} // namespace troupe
