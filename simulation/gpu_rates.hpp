// What a GPU and the links between GPUs can do at best: what a roofline (simulation/h200.hpp) is made of.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.hpp"

namespace troupe::simulation {

// As it stands: measured on one H200 and, for sums, between two over NVLink (driver 580, CUDA 13.0, NCCL 2.28.9).
struct gpu_rates {
  double read_bytes_per_second = 4.65e12; // read-only
  double flops_per_second = 800e12;       // dense bf16, at 2048 rows
  // Sums over so many GPUs, ascending: bytes of a rank, seconds. Within a graph, by the quicker of the fused kernel and NCCL.
  std::int32_t all_reduce_gpus = 2;
  std::vector<std::pair<double, double>> all_reduce = {{8192, 2.4e-6},    {65536, 2.75e-6},   {262144, 3.8e-6}, {524288, 5.4e-6},
                                                       {1 << 20, 7.1e-6}, {4 << 20, 17.8e-6}, {16 << 20, 76e-6}};
};

// Seconds of a sum of `bytes` of each of `gpus` (0 of one). Of another number than was measured it is worked out: a port is as busy as
// with bytes x (gpus - 1) / (measured - 1), all being sent to everybody; or, from two, as with two trips of a slice to all others where
// that is quicker. An assumption, as long as nobody has measured it.
double all_reduce_seconds(const gpu_rates& rates, std::int32_t gpus, double bytes);

// The rates in a result of `troupe bench ceilings`, with sums where it was measured on several GPUs; what it does not have stays as it is
// above. The error names the member at fault.
result<gpu_rates> parse_gpu_rates(std::string_view json_text);

} // namespace troupe::simulation
