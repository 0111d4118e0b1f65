// Builds one plan. Decodes come first, then chunks of the prefills that run, then new sequences, under the budget of tokens; what is left
// of it may go to drafts.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "scheduler/scheduler_core.hpp"

namespace troupe {

class planner {
 public:
  planner(scheduler_core& core, std::uint64_t now_ns);

  // The plan, already noted as in flight; none when there is nothing to do. Call once.
  std::optional<step_plan> run();

 private:
  void plan_decodes();
  std::vector<sequence_state*> choose_decodes() const;
  void plan_prefills();
  void admit();
  void add_drafts();

  void add_item(sequence_state& s, work_item item);
  void add_chunk(sequence_state& s);
  void add_changes();
  std::int32_t room_for_drafts(sequence_state& s, std::int32_t count);
  void verify(std::size_t index, sequence_state& s, std::vector<token_id>& drafts);
  void propose(std::size_t index, sequence_state& s);
  bool ensure_block(sequence_state& s);
  void preempt(sequence_state& s);
  bool has_room(std::int32_t blocks) const;
  bool open(sequence_state& s);
  bool open_beside(sequence_state& s, const sequence_state& first);
  void start(sequence_state& s, std::vector<block_id> blocks, std::int32_t computed);
  const sequence_state* running_first_choice(const sequence_state& s);
  bool any_running(bool (*is)(const sequence_state&)) const;

  scheduler_core& core_;
  std::uint64_t now_ns_;
  std::int32_t budget_; // tokens left
  bool preempted_ = false;
  step_plan plan_;
  plan_in_flight record_;
};

} // namespace troupe
