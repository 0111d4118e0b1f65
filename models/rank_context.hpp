// Which rank of a tensor and pipeline parallel group an executor is, and what it talks to the others through.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "transport/collective/communicator.hpp"

namespace troupe {

// Stages follow one another, each a run of layers; the tp_size ranks of a stage share each of its layers. Rank number:
// stage * tp_size + tp_rank. All ranks get the same plans in the same order. The leader alone answers with what was drawn.
struct rank_context {
  int tp_rank = 0, tp_size = 1, stage = 0, stages = 1;
  std::shared_ptr<communicator> tensor;   // the ranks of this stage, by tp_rank; null when tp_size is 1
  std::shared_ptr<communicator> pipeline; // those of the same tp_rank in all stages, by stage; null when stages is 1
  std::string interface = {};             // that NCCL's sockets use (see choose_interface()); empty: NCCL's choice, on one machine
  bool across_nodes = false;              // the group's ranks are on several machines

  bool first_stage() const { return stage == 0; }
  bool last_stage() const { return stage == stages - 1; }
  bool leader() const { return last_stage() && tp_rank == 0; }
  int number() const { return stage * tp_size + tp_rank; }
  int size() const { return tp_size * stages; }
};

// "rank 3 (stage 1, tensor rank 1)"
std::string name_of(const rank_context& rank);

// `call` on the communicator; what it throws then names the peer as a rank of the whole group.
void with_tensor(const rank_context& rank, const std::function<void(communicator&)>& call);
void with_pipeline(const rank_context& rank, const std::function<void(communicator&)>& call);

// Ends the calls of all other ranks, now and later.
void abort_group(const rank_context& rank, const std::string& reason) noexcept;

} // namespace troupe
