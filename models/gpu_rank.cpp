#include "models/gpu_rank.hpp"

#include <array>
#include <cstring>
#include <string>

#include "core/error.hpp"
#include "device/cuda/stream.hpp"
#include "models/gpu_weights.hpp"
#include "models/shard.hpp"

namespace troupe {

namespace {

constexpr std::int32_t width_block = 8; // what the kernels take no part of

} // namespace

model_config gpu_share(const model_config& whole, const rank_context& rank) {
  return rank.size() == 1 ? whole : shard_config(whole, rank, width_block);
}

model_weights gpu_share(const model_weights& whole, const rank_context& rank) {
  if (rank.size() == 1) return whole;
  model_weights mine = shard_weights(whole, rank, width_block);
  mine.config.output_bias = whole.config.output_bias && rank.tp_rank == 0;
  const gpu_ends ends = ends_of(whole.config, rank);
  mine.embedding = ends.embedding ? whole.embedding : weight_view{};
  mine.head = ends.head ? whole.head : weight_view{};
  mine.head.rows = ends.head ? ends.ids.rows : 0;
  if (mine.head) mine.head.data = whole.head.row(ends.ids.first);
  return mine;
}

void gpu_rank::abort(const std::string& reason) const noexcept {
  for (cuda::nccl_communicator* group : {rows.get(), draws.get(), devices.get()}) {
    if (group != nullptr) group->abort(reason);
  }
}

bool gpu_rank::is_stuck() const { return (devices && devices->is_stuck()) || (rows && rows->is_stuck()) || (draws && draws->is_stuck()); }

#ifdef TROUPE_HAVE_NCCL

namespace {

// The group of the GPUs whose ranks `host` joins; its first rank's id goes round there. `place` says through which interface.
std::shared_ptr<cuda::nccl_communicator> joined(const rank_context& place, communicator& host, const std::string& name,
                                                std::chrono::milliseconds deadline) {
  cuda::nccl_options options;
  options.name = name;
  options.deadline = deadline;
  options.interface = place.interface;
  options.across_nodes = place.across_nodes;
  cuda::nccl_group_id id;
  if (host.rank() == 0) id = cuda::make_nccl_group_id(options);
  std::array<std::int32_t, sizeof(id.bytes) / sizeof(std::int32_t)> words{};
  std::memcpy(words.data(), id.bytes.data(), sizeof(id.bytes));
  host.broadcast({words.data(), words.size(), dtype::i32}, 0);
  std::memcpy(id.bytes.data(), words.data(), sizeof(id.bytes));
  return cuda::join_nccl_group(id, host.rank(), host.size(), options);
}

} // namespace

gpu_rank join_gpus(const rank_context& host, std::int32_t device, std::chrono::milliseconds deadline) {
  gpu_rank rank{host, nullptr, nullptr, nullptr};
  if (host.size() == 1) return rank;
  cuda::use_device(device);
  if (host.tp_size > 1) with_tensor(host, [&](communicator& group) { rank.devices = joined(host, group, "tp", deadline); });
  if (host.stages > 1) {
    with_pipeline(host, [&](communicator& group) {
      rank.rows = joined(host, group, "rows of the pipeline", deadline);
      rank.draws = joined(host, group, "draws of the pipeline", deadline);
    });
  }
  return rank;
}

#else

gpu_rank join_gpus(const rank_context& host, std::int32_t, std::chrono::milliseconds) {
  if (host.size() == 1) return {host, nullptr, nullptr, nullptr};
  throw load_error("--tp " + std::to_string(host.tp_size) + ", --pp " + std::to_string(host.stages) +
                   ": GPUs are joined by NCCL, and this program was built without it");
}

#endif

} // namespace troupe
