// What this GPU can do at best, measured: figures of real work are given as shares of these, taken in the same run.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "device/cuda/memory.hpp"
#include "device/cuda/stream.hpp"

namespace troupe::gpu {

struct ceilings {
  std::string device;
  double read_bandwidth = 0;    // bytes a second that kernels read, over 8 GiB
  double copy_bandwidth = 0;    // bytes a second of a copy on the device, read and written ones counted
  double launch_eager = 0;      // seconds per empty kernel, one after the other
  double launch_graph = 0;      // the same in a graph
  double launch_overlapped = 0; // in a graph, with programmatic dependent launch
  double pinned_up = 0;         // bytes a second from pinned host memory
  double pinned_down = 0;
  double small_download = 0; // seconds for 1 KiB and the wait for it
  double matmul_rate = 0;    // bf16 multiplications and additions a second, 8192 x 8192 x 8192, cuBLASLt
};

// Seconds of one `work`, which puts something on `on`: the median of `repeats` runs of `inner` each, after two to warm up.
double median_seconds(const cuda::stream& on, int repeats, int inner, const std::function<void()>& work);

// Takes 8 GiB of the current device for a while.
ceilings measure_ceilings();
// read_bandwidth alone. `data`: at least 1 GiB, a multiple of 16 bytes.
double measure_read_bandwidth(const cuda::stream& on, const std::byte* data, std::size_t bytes);
// Fills with random bf16 of both signs between 2^-8 and 2^-6; `bytes` a multiple of 16.
void fill_random(const cuda::stream& on, std::byte* data, std::size_t bytes, unsigned seed);

} // namespace troupe::gpu
