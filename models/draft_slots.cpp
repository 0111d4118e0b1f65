#include "models/draft_slots.hpp"

#include <algorithm>

#include "models/slot_table.hpp"

namespace troupe {
namespace {

// A drawn token that was guessed, and was itself followed by a guess, is a row already.
void take_drawn(draft_slot& slot, token_id token) {
  const bool guessed = slot.pending.empty() && slot.right + 1 < slot.guesses.size() && slot.guesses[slot.right] == token;
  if (!guessed) return slot.pending.push_back(token);
  ++slot.right;
  ++slot.rows;
}

} // namespace

draft_slots::draft_slots(const executor_info& draft) : info_(draft), slots_(static_cast<std::size_t>(draft.max_num_seqs)) {}

void draft_slots::follow(const step_plan& plan, const step_result& result) {
  if (plan.epoch != epoch_) std::fill(slots_.begin(), slots_.end(), draft_slot{});
  epoch_ = plan.epoch;
  for (const slot_id slot : plan.closed) (*this)[slot] = {};
  for (const slot_open& opened : plan.opened) {
    (*this)[opened.slot].open = true;
    (*this)[opened.slot].prompt_tokens = opened.prompt_tokens;
  }
  for (draft_slot& slot : slots_) slot.due = slot.wanted = 0;
  const token_id* tokens = plan.tokens.data();
  for (std::size_t i = 0; i < plan.items.size(); ++i) {
    const token_id* const mine = tokens;
    tokens += tokens_of(plan.items[i], (*this)[plan.items[i].slot].prompt_tokens); // before a fault forgets the slot
    take_item(plan.items[i], result.outputs[i], mine);
  }
}

// Rows of prompts are computed with the target's. Those of single decodes wait until a proposal needs them or they are a block's worth,
// so that a block that may be shared is complete.
void draft_slots::take_item(const work_item& item, const slot_output& output, const token_id* tokens) {
  draft_slot& slot = (*this)[item.slot];
  if (output.numeric_fault) {
    slot = {};
    return;
  }
  if (!slot.started) slot.rows = item.first_position;
  slot.started = true;
  if (item.kind == work_kind::prefill) slot.pending.insert(slot.pending.end(), tokens, tokens + item.token_count);
  for (std::size_t i = 0; i + 1 < output.tokens.size(); ++i) take_drawn(slot, output.tokens[i]);
  if (!output.tokens.empty()) slot.pending.push_back(output.tokens.back()); // whatever was guessed: the next draw is from its row
  slot.guesses.clear();
  slot.right = 0;
  const auto known = static_cast<std::int32_t>(slot.pending.size());
  const std::int32_t without_last = known - (output.tokens.empty() ? 0 : 1);
  if (item.propose > 0 && slot.rows + known + item.propose - 1 <= info_.max_model_len) {
    slot.due = known;
    slot.wanted = item.propose;
  } else if (slot.rows + without_last <= info_.max_model_len && (item.kind == work_kind::prefill || without_last >= info_.block_size)) {
    slot.due = without_last;
  }
}

} // namespace troupe
