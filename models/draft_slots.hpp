// What the draft model has computed of each sequence, and what it has still to be given.
#pragma once

#include <cstdint>
#include <vector>

#include "core/step.hpp"

namespace troupe {

struct draft_slot {
  bool open = false;
  std::int32_t prompt_tokens = 0;
  bool started = false;
  std::int32_t rows = 0;         // positions 0 .. rows-1 are in its KV
  std::vector<token_id> pending; // the known tokens from there on; the last one drawn is always among them
  std::vector<token_id> guesses; // proposed last; all but the last of them are rows, too, behind `rows`
  std::size_t right = 0;         // how many of them were drawn since
  std::int32_t due = 0;          // leading tokens of `pending` that are to be computed now
  std::int32_t wanted = 0;       // proposals asked for now
};

class draft_slots {
 public:
  explicit draft_slots(const executor_info& draft);

  // Follows a plan of the target and what it drew: who is open, which tokens are known, and what is due.
  void follow(const step_plan& plan, const step_result& result);
  draft_slot& operator[](slot_id slot) { return slots_[static_cast<std::size_t>(slot)]; }

 private:
  void take_item(const work_item& item, const slot_output& output, const token_id* tokens);

  executor_info info_;
  epoch_number epoch_ = 0;
  std::vector<draft_slot> slots_;
};

} // namespace troupe
