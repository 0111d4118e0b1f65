// Sums of many rows over two GPUs beside the products of other rows: each rank's rows go to the other one by a copy engine, and are added
// by the norm that comes next. NCCL's kernels hold multiprocessors, for which the blocks of a running product then wait.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "device/cuda/memory.hpp"
#include "device/cuda/stream.hpp"
#include "models/gpu_rank.hpp"
#include "models/gpu_rank_sums.hpp"
#include "transport/collective/cuda/peer_windows.hpp"

namespace troupe {

// Two sums may be under way at once, of two parts of a step's rows. Both ranks call the same in the same order.
class gpu_copied_sums {
 public:
  using log_line = std::function<void(const std::string&)>;

  // Device memory that open() takes; 0 where there are not two ranks.
  static std::size_t planned_bytes(int ranks, const rank_sum_shape& shape);
  // Both ranks call it at once. Null, with one line to `log` that says why, where they do not reach each other's memory or what one sends
  // is not what comes. `on` is for a trial. `memory` outlives this. Throws collective_error, and device_error where the device itself
  // fails.
  static std::unique_ptr<gpu_copied_sums> open(const gpu_rank& rank, const rank_sum_shape& shape, gpu_rank_sums::device_memory memory,
                                               const cuda::stream& on, const log_line& log);
  ~gpu_copied_sums();
  gpu_copied_sums(const gpu_copied_sums&) = delete;
  gpu_copied_sums& operator=(const gpu_copied_sums&) = delete;

  // Sends `rows`, of which the step's row `first` is the first, when the work of `on` so far is done. They stay as they are until
  // receive().
  void send(const cuda::stream& on, std::size_t part, std::int32_t first, const std::byte* rows, std::int32_t count);
  // The other rank's rows of the part's last send(), for later work of `on` until that sends the part again.
  const std::byte* receive(const cuda::stream& on, std::size_t part);
  // Later waits for the other rank end, with rows that mean nothing; from any thread.
  void give_up() noexcept { windows_->give_up(); }

 private:
  struct one_sum {
    std::uint32_t number = 0; // of sends so far
    std::int32_t first = 0;
    cuda::event computed, sent;
  };

  gpu_copied_sums(const gpu_rank& rank, const rank_sum_shape& shape, cuda::memory_ledger& ledger,
                  std::unique_ptr<cuda::peer_windows> windows);
  std::size_t row_bytes() const { return static_cast<std::size_t>(shape_.columns) * 2; }
  std::size_t rows_at(const one_sum& sum) const;                   // in a window
  std::size_t word_at(std::size_t part, const one_sum& sum) const; // in a window
  std::string exchange_trial(const cuda::stream& on, cuda::caching_allocator& memory);

  std::shared_ptr<cuda::nccl_communicator> group_;
  rank_sum_shape shape_;
  cuda::memory_ledger& ledger_;
  std::unique_ptr<cuda::peer_windows> windows_;
  cuda::stream copies_{cuda::stream::priority::first};
  std::array<one_sum, 2> sums_;
};

} // namespace troupe
