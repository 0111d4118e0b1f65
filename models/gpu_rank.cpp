#include "models/gpu_rank.hpp"

#include <array>
#include <cstring>
#include <string>

#include "core/error.hpp"
#include "device/cuda/stream.hpp"
#include "models/gpu_model.hpp"
#include "models/shard.hpp"

namespace troupe {

model_config gpu_share(const model_config& whole, const rank_context& rank) {
  if (rank.size() == 1) return whole;
  if (rank.stages > 1) throw load_error("--pp " + std::to_string(rank.stages) + ": a GPU holds all layers; --tp shares each of them out");
  model_config mine = shard_config(whole, rank);
  const std::string unsupported = gpu_model::unsupported(mine);
  if (!unsupported.empty()) throw load_error("--tp " + std::to_string(rank.tp_size) + ": in the share of a GPU, " + unsupported);
  return mine;
}

model_weights gpu_share(const model_weights& whole, const rank_context& rank) {
  if (rank.size() == 1) return whole;
  model_weights mine = shard_weights(whole, rank);
  mine.config = gpu_share(whole.config, rank);
  mine.config.output_bias = whole.config.output_bias && rank.tp_rank == 0;
  mine.embedding = whole.embedding;
  const vocab_slice head = head_of_gpu(whole.config, rank.tp_rank, rank.tp_size);
  mine.head = whole.head;
  mine.head.rows = head.rows;
  if (whole.head) mine.head.data = whole.head.row(head.first);
  return mine;
}

#ifdef TROUPE_HAVE_NCCL

gpu_rank join_gpus(const rank_context& host, std::int32_t device, std::chrono::milliseconds deadline) {
  if (host.tp_size == 1) return {host, nullptr};
  cuda::use_device(device);
  cuda::nccl_options options;
  options.name = "tp";
  options.deadline = deadline;
  options.interface = host.interface;
  options.across_nodes = host.across_nodes;
  cuda::nccl_group_id id;
  if (host.tp_rank == 0) id = cuda::make_nccl_group_id(options);
  std::array<std::int32_t, sizeof(id.bytes) / sizeof(std::int32_t)> words{};
  std::memcpy(words.data(), id.bytes.data(), sizeof(id.bytes));
  with_tensor(host, [&](communicator& group) { group.broadcast({words.data(), words.size(), dtype::i32}, 0); });
  std::memcpy(id.bytes.data(), words.data(), sizeof(id.bytes));
  return {host, cuda::join_nccl_group(id, host.tp_rank, host.tp_size, options)};
}

#else

gpu_rank join_gpus(const rank_context& host, std::int32_t, std::chrono::milliseconds) {
  if (host.tp_size == 1) return {host, nullptr};
  throw load_error("--tp " + std::to_string(host.tp_size) + ": GPUs are joined by NCCL, and this program was built without it");
}

#endif

} // namespace troupe
