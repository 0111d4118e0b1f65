// Sums of few rows over the GPUs of a group by a kernel of our own (kernels/rank_sum_gpu), checked against NCCL before it is used. NCCL
// sums what is larger, and everything where this cannot be used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/dtype.hpp"
#include "device/cuda/memory.hpp"
#include "device/cuda/stream.hpp"
#include "kernels/rank_sum_gpu.hpp"
#include "models/gpu_rank.hpp"
#include "transport/collective/cuda/peer_windows.hpp"

namespace troupe {

struct rank_sum_shape {
  dtype type = dtype::bf16;
  std::int64_t columns = 0; // of a row
  std::int32_t max_rows = 0;
};

struct rank_sum_call {
  const void* part = nullptr;     // [rows][columns]: this rank's
  const void* residual = nullptr; // or null
  void* sum = nullptr;            // may be part or residual
  std::int32_t rows = 0;
  const void* norm_weight = nullptr; // null: no norm
  float epsilon = 0;
  void* normed = nullptr;
  bool overlaps = false;
};

class gpu_rank_sums {
 public:
  using log_line = std::function<void(const std::string&)>;
  struct device_memory {
    cuda::caching_allocator& small;
    cuda::memory_ledger& ledger;
  };

  // Rows that it sums in a group of so many ranks; 0: none.
  static std::int32_t most_rows(int ranks, const rank_sum_shape& shape);
  // Device memory that open() takes.
  static std::size_t planned_bytes(int ranks, const rank_sum_shape& shape);
  // All ranks of the group call it at once. Null, with one line to `log` that says why, where GPUs do not reach each other over NVLink, the
  // user's settings of NCCL forbid it, or a sum is not NCCL's. `memory` and `on`, the stream of all later calls, outlive this.
  // Throws collective_error, and device_error where the device itself fails.
  static std::unique_ptr<gpu_rank_sums> open(const gpu_rank& rank, const rank_sum_shape& shape, device_memory memory,
                                             const cuda::stream& on, const log_line& log);
  ~gpu_rank_sums();
  gpu_rank_sums(const gpu_rank_sums&) = delete;
  gpu_rank_sums& operator=(const gpu_rank_sums&) = delete;

  std::int32_t most_rows() const { return most_rows_; }
  bool takes(std::int32_t rows) const { return rows <= most_rows_; }
  void* part() const { return part_.data(); } // [most_rows][columns]: for what a call brings in
  // Queues a sum of at most most_rows rows, as sum_over_ranks() does; may be captured in a graph. A fault of the group ends it.
  void run(const rank_sum_call& call) const;

 private:
  gpu_rank_sums(const gpu_rank& rank, const rank_sum_shape& shape, device_memory memory, const cuda::stream& on,
                std::unique_ptr<cuda::peer_windows> windows);
  gpu::rank_windows windows() const;
  // What speaks against the sums, after all ranks have tried them; empty: nothing.
  std::string check(communicator& host) const;

  std::shared_ptr<cuda::nccl_communicator> group_;
  rank_sum_shape shape_;
  std::int32_t most_rows_;
  device_memory memory_;
  const cuda::stream& on_;
  std::unique_ptr<cuda::peer_windows> windows_;
  cuda::caching_allocator::buffer part_, state_;
};

} // namespace troupe
