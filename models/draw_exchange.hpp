// How the ranks that do not draw learn what was drawn. The leader tells its tensor peers with every step; each rank of the last stage
// tells those of its tp_rank in the stages before, which look only when a plan goes on from a draw: until then stages work ahead.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "core/step.hpp"
#include "models/rank_context.hpp"
#include "models/slot_table.hpp"

namespace troupe {

// Where an item left its slot: position, last token, fault. `output` holds all draws of the item; rows of rejected drafts are forgotten.
void settle(slot_state& slot, const work_item& item, const slot_output& output);

class draw_exchange {
 public:
  draw_exchange(rank_context rank, std::int32_t max_num_seqs);

  // Before the slots take `plan`: waits for the draws that its items go on from, and settles them. On the last stage nothing is to be done.
  void catch_up(const step_plan& plan, slot_table& slots);
  // Behind the plan's rows. On the last stage `outputs` are the leader's draws there and become so on its peers, and slots are settled;
  // on the others the slots are as far on as can be said now. Throws collective_error, as catch_up() does.
  void finish(const step_plan& plan, std::vector<slot_output>& outputs, slot_table& slots);

 private:
  struct awaited_item {
    work_item item;
    std::uint64_t life = 0;
  };

  void publish(const step_plan& plan, std::vector<slot_output>& outputs);
  void expect(const step_plan& plan, slot_table& slots);
  void receive(slot_table& slots);

  rank_context rank_;
  std::vector<std::int32_t> message_;
  // Of a stage before the last.
  std::deque<std::vector<awaited_item>> awaited_; // plans whose draws have not been looked at, in order
  std::uint64_t planned_ = 0, received_ = 0;      // plans so far; the first is 1
  std::vector<std::uint64_t> drawn_by_;           // by slot: the last plan that drew for it
};

} // namespace troupe
