// What a device keeps of each sequence, moved on by plans. Checks that a plan keeps the step protocol before anything is computed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/step.hpp"
#include "models/token_history.hpp"

namespace troupe {

struct slot_state {
  bool open = false;
  std::uint64_t life = 0; // rises when the slot is closed: what is said later of one before is about somebody else
  std::int32_t prompt_tokens = 0;
  sampling_params sampling;
  std::vector<block_id> blocks;         // physical block of each logical one
  std::optional<std::int32_t> position; // of the next row; none until the first item says where it starts
  std::optional<token_id> last_token;   // sampled last, not yet a row
  bool faulted = false;                 // its logits were not numbers: it computes nothing any more
  token_history history;                // kept only for slots with penalties
};

class slot_table {
 public:
  explicit slot_table(const executor_info& info);

  // Applies closed, opened and grants, and checks copies and items; what is wrong with the plan, or none. After a breach the plan is
  // applied in part, and every further plan of its epoch is refused; the next epoch starts with all slots closed.
  std::optional<std::string> take(const step_plan& plan);
  // Refuses the rest of the epoch for another reason.
  void fail(std::string reason) { failure_ = std::move(reason); }

  slot_state& operator[](slot_id slot) { return slots_[static_cast<std::size_t>(slot)]; }

 private:
  using breach = std::optional<std::string>;
  breach follow(const step_plan& plan);
  breach close(slot_id slot);
  breach open(const slot_open& opened);
  breach grant(const block_grant& granted);
  breach check_copies(const step_plan& plan) const;
  breach check_items(const step_plan& plan);
  breach check_item(const work_item& item, const slot_state& state) const;
  breach check_blocks(const work_item& item, const slot_state& state);
  bool is_slot(slot_id slot) const { return slot >= 0 && slot < info_.max_num_seqs; }
  bool is_block(block_id block) const { return block >= 0 && block < info_.num_blocks; }

  executor_info info_;
  std::size_t blocks_per_slot_;
  epoch_number epoch_ = 0;
  step_number step_ = 0;
  std::optional<std::string> failure_;
  std::vector<slot_state> slots_;
  // Marks of the running plan, so that nothing is cleared per step.
  std::uint64_t mark_ = 0;
  std::vector<std::uint64_t> slot_mark_, block_mark_;
};

// Tokens that come with the plan for `item`, the extra target of a scoring chunk included.
std::int64_t tokens_of(const work_item& item, std::int32_t prompt_tokens);
// Rows of `item` whose next prompt token is scored.
std::int32_t scored_rows(const work_item& item, std::int32_t prompt_tokens);

} // namespace troupe
