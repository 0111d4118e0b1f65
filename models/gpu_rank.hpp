// One GPU of a tensor parallel group: what it holds of a model, and how it finds the others.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "device/cuda/memory.hpp"
#include "models/model.hpp"
#include "models/rank_context.hpp"
#include "transport/collective/cuda/nccl_communicator.hpp"

namespace troupe {

struct gpu_rank {
  rank_context host;                                // its communicators are on the host: what is agreed on at the start
  std::shared_ptr<cuda::nccl_communicator> devices; // the GPUs of the same stage, for sums; null when it has one alone
  // Those of the same tensor rank in all stages, null when there is one: hidden rows go on by one, draws come back by the other, so that
  // neither stands behind the other.
  std::shared_ptr<cuda::nccl_communicator> rows, draws;

  bool first() const { return host.tp_rank == 0; }
  bool grouped() const { return devices || rows; }
  // Whose deadline waits for this GPU's work have; null when it is alone.
  cuda::nccl_communicator* watch() const { return rows ? rows.get() : devices.get(); }
  // Ends the work of all others that waits for this one.
  void abort(const std::string& reason) const noexcept;
  bool is_stuck() const; // see nccl_communicator
};

// What a rank on a GPU holds: shard_config() and shard_weights(), but the embedding whole, and of the head what ends_of() says. The output
// projection's bias is the first tensor rank's. Throw load_error as those do.
model_config gpu_share(const model_config& whole, const rank_context& rank);
model_weights gpu_share(const model_weights& whole, const rank_context& rank);

// A GPU on its way into its group, beside what its rank does meanwhile and needs no other for.
class gpu_joining {
 public:
  gpu_joining(gpu_rank joined = {}); // NOLINT: a rank that has joined, or is alone, is there at once
  gpu_joining(gpu_joining&&) noexcept;
  gpu_joining& operator=(gpu_joining&&) noexcept;
  ~gpu_joining(); // a rank that was not taken leaves the group

  const rank_context& host() const { return rank_.host; }
  // Of the device, before NCCL began to take of it; none: it has taken what it takes.
  const std::optional<cuda::memory_state>& memory_before() const { return memory_before_; }
  // Waits until all ranks have joined; once. Throws collective_error.
  gpu_rank take();

 private:
  friend gpu_joining join_gpus(const rank_context& host, std::int32_t device, std::chrono::milliseconds deadline,
                               std::function<void()> joined);
  class work;

  gpu_rank rank_;
  std::optional<cuda::memory_state> memory_before_;
  std::unique_ptr<work> work_; // null: nothing to wait for
};

// What the first join of a process takes besides, done before there is somebody to join: on the current device, which keeps NCCL's kernels.
void prepare_to_join();

// Begins to join `device` with those of the group's other ranks; `host` brings NCCL's ids round, which waits for the ranks and is done when
// this returns. No call on the GPU waits longer than `deadline` for a peer. `joined` is called on another thread when all have joined.
// Throws collective_error; load_error in a program that was built without NCCL.
gpu_joining join_gpus(const rank_context& host, std::int32_t device, std::chrono::milliseconds deadline, std::function<void()> joined = {});

} // namespace troupe
