// One GPU of a tensor parallel group: what it holds of a model, and how it finds the others.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "models/model.hpp"
#include "models/rank_context.hpp"
#include "transport/collective/cuda/nccl_communicator.hpp"

namespace troupe {

struct gpu_rank {
  rank_context host;                                // its communicators are on the host: what is agreed on at the start
  std::shared_ptr<cuda::nccl_communicator> devices; // the GPUs of the same ranks, for sums; null when there is one alone

  bool first() const { return host.tp_rank == 0; }
};

// What a rank on a GPU holds: shard_config() and shard_weights(), but the embedding whole, and of the head what head_of_gpu() says. The
// output projection's bias is the first rank's. Throw load_error as those do, and for a pipeline.
model_config gpu_share(const model_config& whole, const rank_context& rank);
model_weights gpu_share(const model_weights& whole, const rank_context& rank);

// The end of `device` in the group, once all ranks of it have come; `host` brings NCCL's id round. No call on the GPU waits longer than
// `deadline` for a peer. Throws collective_error; load_error in a program that was built without NCCL.
gpu_rank join_gpus(const rank_context& host, std::int32_t device, std::chrono::milliseconds deadline);

} // namespace troupe
