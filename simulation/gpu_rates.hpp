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
  // Sums over so many GPUs, in a graph, ascending: bytes of a rank, seconds. By the kernel that sends all to everybody, as far as it goes
  // (may be empty), and by NCCL, whose large sums go round in slices.
  std::int32_t all_reduce_gpus = 2;
  std::vector<std::pair<double, double>> at_once = {{8192, 2.4e-6},   {65536, 2.75e-6},  {262144, 3.8e-6},
                                                    {524288, 5.4e-6}, {1 << 20, 7.1e-6}, {4 << 20, 17.8e-6}};
  std::vector<std::pair<double, double>> in_slices = {{8192, 6.6e-6}, {65536, 7.3e-6}, {524288, 10.2e-6}, {16 << 20, 76e-6}};
};

// Seconds of a sum of `bytes` of each of `gpus` (0 of one), by the quicker way. Of another number of GPUs than was measured it takes as
// long as the measured sum that keeps a port as busy: sending all to everybody, (gpus - 1) times the bytes; in slices, 2 (gpus - 1) / gpus
// times. An assumption, as long as nobody has measured it.
double all_reduce_seconds(const gpu_rates& rates, std::int32_t gpus, double bytes);

// The rates in a result of `troupe bench ceilings`, with sums where it was measured on several GPUs; what it does not have stays as it is
// above. The error names the member at fault.
result<gpu_rates> parse_gpu_rates(std::string_view json_text);

} // namespace troupe::simulation
