#include "models/rank_context.hpp"

namespace troupe {
namespace {

// `peer` is the rank's place in the whole group of the one that was waited for.
[[noreturn]] void rethrow(const collective_error& e, rank_context peer) {
  if (e.peer() < 0) throw;
  throw collective_error(e.fault(), peer.number(), name_of(peer) + ": " + e.what());
}

} // namespace

std::string name_of(const rank_context& rank) {
  return "rank " + std::to_string(rank.number()) + " (stage " + std::to_string(rank.stage) + ", tensor rank " +
         std::to_string(rank.tp_rank) + ")";
}

void with_tensor(const rank_context& rank, const std::function<void(communicator&)>& call) {
  try {
    call(*rank.tensor);
  } catch (const collective_error& e) {
    rethrow(e, {e.peer(), rank.tp_size, rank.stage, rank.stages, nullptr, nullptr});
  }
}

void with_pipeline(const rank_context& rank, const std::function<void(communicator&)>& call) {
  try {
    call(*rank.pipeline);
  } catch (const collective_error& e) {
    rethrow(e, {rank.tp_rank, rank.tp_size, e.peer(), rank.stages, nullptr, nullptr});
  }
}

void abort_group(const rank_context& rank, const std::string& reason) noexcept {
  if (rank.tensor) rank.tensor->abort(reason);
  if (rank.pipeline) rank.pipeline->abort(reason);
}

} // namespace troupe
