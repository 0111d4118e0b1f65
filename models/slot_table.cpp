#include "models/slot_table.hpp"

#include <algorithm>
#include <cmath>

namespace troupe {
namespace {

std::string at_slot(slot_id slot) { return "slot " + std::to_string(slot) + " "; }

std::int64_t end_of(const work_item& item) { return std::int64_t{item.first_position} + item.token_count; }

// What core/sampling.hpp asks of the numbers, or the first that breaks it. Token ids are the sampler's: it passes over foreign ones.
std::optional<std::string> unusable(const sampling_params& p) {
  const auto wrong = [](const char* name, double number) { return name + (" " + std::to_string(number)); };
  const auto inside = [](float number, float low, float high) { return number >= low && number <= high; }; // false for NaN
  if (!std::isfinite(p.temperature)) return wrong("temperature", p.temperature);
  if (!inside(p.top_p, 0.0F, 1.0F) || p.top_p == 0.0F) return wrong("top_p", p.top_p);
  if (!inside(p.min_p, 0.0F, 1.0F)) return wrong("min_p", p.min_p);
  if (p.top_k < 0) return wrong("top_k", p.top_k);
  if (!std::isfinite(p.repetition_penalty) || p.repetition_penalty <= 0.0F) return wrong("repetition_penalty", p.repetition_penalty);
  if (!inside(p.presence_penalty, -2.0F, 2.0F)) return wrong("presence_penalty", p.presence_penalty);
  if (!inside(p.frequency_penalty, -2.0F, 2.0F)) return wrong("frequency_penalty", p.frequency_penalty);
  if (p.top_logprobs && *p.top_logprobs < 0) return wrong("top_logprobs", *p.top_logprobs);
  for (const token_bias& bias : p.logit_bias) {
    if (!std::isfinite(bias.bias)) return wrong("logit_bias", bias.bias);
  }
  return std::nullopt;
}

} // namespace

std::int32_t scored_rows(const work_item& item, std::int32_t prompt_tokens) {
  if (item.kind != work_kind::prefill || !item.prompt_logprobs) return 0;
  return std::clamp(prompt_tokens - 1 - item.first_position, 0, item.token_count);
}

std::int64_t tokens_of(const work_item& item, std::int32_t prompt_tokens) {
  switch (item.kind) {
    case work_kind::prefill:
      return std::int64_t{item.token_count} + (item.prompt_logprobs && end_of(item) < prompt_tokens ? 1 : 0);
    case work_kind::verify:
      return std::int64_t{item.token_count} - 1;
    case work_kind::decode:
      return 0;
  }
  return 0;
}

slot_table::slot_table(const executor_info& info)
    : info_(info),
      blocks_per_slot_((static_cast<std::size_t>(info.max_model_len) + static_cast<std::size_t>(info.block_size) - 1) /
                       static_cast<std::size_t>(info.block_size)),
      slots_(static_cast<std::size_t>(info.max_num_seqs)),
      slot_mark_(slots_.size()),
      block_mark_(static_cast<std::size_t>(info.num_blocks)) {
  const std::size_t most = std::min(blocks_per_slot_, block_mark_.size());
  for (slot_state& slot : slots_) slot.blocks.reserve(most);
}

std::optional<std::string> slot_table::take(const step_plan& plan) {
  if (plan.epoch < epoch_) {
    return "plan of epoch " + std::to_string(plan.epoch) + " after epoch " + std::to_string(epoch_) + " began";
  }
  if (plan.epoch > epoch_) {
    epoch_ = plan.epoch;
    step_ = 0;
    failure_.reset();
    for (slot_id slot = 0; slot < info_.max_num_seqs; ++slot) {
      if ((*this)[slot].open) close(slot);
    }
  }
  if (failure_) return "epoch " + std::to_string(epoch_) + " has failed already: " + *failure_;
  breach found = follow(plan);
  if (found) failure_ = found;
  return found;
}

slot_table::breach slot_table::follow(const step_plan& plan) {
  if (plan.step != step_ + 1) return "plan of step " + std::to_string(plan.step) + " after step " + std::to_string(step_);
  step_ = plan.step;
  ++mark_;
  for (const slot_id slot : plan.closed) {
    if (breach found = close(slot)) return found;
  }
  for (const slot_open& opened : plan.opened) {
    if (breach found = open(opened)) return found;
  }
  for (const block_grant& granted : plan.grants) {
    if (breach found = grant(granted)) return found;
  }
  if (breach found = check_copies(plan)) return found;
  return check_items(plan);
}

slot_table::breach slot_table::close(slot_id slot) {
  if (!is_slot(slot) || !(*this)[slot].open) return at_slot(slot) + "is closed but was not open";
  slot_state& state = (*this)[slot];
  state.open = false;
  ++state.life;
  state.blocks.clear();
  state.position.reset();
  state.last_token.reset();
  state.faulted = false;
  state.history.clear();
  return std::nullopt;
}

slot_table::breach slot_table::open(const slot_open& opened) {
  if (!is_slot(opened.slot)) return at_slot(opened.slot) + "is opened but there are " + std::to_string(info_.max_num_seqs);
  slot_state& state = (*this)[opened.slot];
  if (state.open) return at_slot(opened.slot) + "is opened but is in use";
  if (opened.prompt_tokens < 1 || opened.prompt_tokens > info_.max_model_len) {
    return at_slot(opened.slot) + "is opened with " + std::to_string(opened.prompt_tokens) + " prompt tokens";
  }
  if (const auto reason = unusable(opened.sampling)) return at_slot(opened.slot) + "is opened with " + *reason;
  state.open = true;
  state.prompt_tokens = opened.prompt_tokens;
  state.sampling = opened.sampling;
  return std::nullopt;
}

slot_table::breach slot_table::grant(const block_grant& granted) {
  if (!is_slot(granted.slot) || !(*this)[granted.slot].open) return at_slot(granted.slot) + "is granted blocks but is not open";
  std::vector<block_id>& table = (*this)[granted.slot].blocks;
  if (granted.first_block < 0 || static_cast<std::size_t>(granted.first_block) > table.size()) {
    return at_slot(granted.slot) + "is granted blocks from " + std::to_string(granted.first_block) + " on but has " +
           std::to_string(table.size());
  }
  const std::size_t first = static_cast<std::size_t>(granted.first_block);
  if (granted.blocks.size() > blocks_per_slot_ - first) return at_slot(granted.slot) + "is granted more blocks than a sequence can use";
  for (const block_id block : granted.blocks) {
    if (!is_block(block))
      return at_slot(granted.slot) + "is granted block " + std::to_string(block) + " of " + std::to_string(info_.num_blocks);
  }
  table.resize(std::max(table.size(), first + granted.blocks.size()));
  std::copy(granted.blocks.begin(), granted.blocks.end(), table.begin() + granted.first_block);
  return std::nullopt;
}

slot_table::breach slot_table::check_copies(const step_plan& plan) const {
  for (const block_copy& copy : plan.copies) {
    if (!is_block(copy.from) || !is_block(copy.to) || copy.from == copy.to) {
      return "block " + std::to_string(copy.from) + " is copied to block " + std::to_string(copy.to) + " of " +
             std::to_string(info_.num_blocks);
    }
  }
  return std::nullopt;
}

slot_table::breach slot_table::check_items(const step_plan& plan) {
  std::int64_t rows = 0;
  std::size_t tokens = 0;
  for (const work_item& item : plan.items) {
    if (!is_slot(item.slot) || !(*this)[item.slot].open) return at_slot(item.slot) + "has work but is not open";
    std::uint64_t& mark = slot_mark_[static_cast<std::size_t>(item.slot)];
    if (mark == mark_) return at_slot(item.slot) + "has two items in one plan";
    mark = mark_;
    const slot_state& state = (*this)[item.slot];
    if (breach found = check_item(item, state)) return found;
    if (breach found = check_blocks(item, state)) return found;
    rows += item.token_count;
    if (rows > info_.max_batched_tokens) {
      return "the plan has more than " + std::to_string(info_.max_batched_tokens) + " rows";
    }
    tokens += static_cast<std::size_t>(tokens_of(item, state.prompt_tokens));
  }
  if (tokens != plan.tokens.size()) {
    return "the plan carries " + std::to_string(plan.tokens.size()) + " tokens but its items take " + std::to_string(tokens);
  }
  for (const token_id token : plan.tokens) {
    if (token < 0 || token >= info_.vocab_size)
      return "token " + std::to_string(token) + " is outside the vocabulary of " + std::to_string(info_.vocab_size);
  }
  return std::nullopt;
}

slot_table::breach slot_table::check_item(const work_item& item, const slot_state& state) const {
  const std::string who = at_slot(item.slot);
  if (item.kind > work_kind::verify) return who + "has work of an unknown kind";
  if (item.token_count < 1 || (item.kind == work_kind::decode && item.token_count != 1)) {
    return who + "has an item of " + std::to_string(item.token_count) + " tokens";
  }
  if (item.kind == work_kind::verify && item.token_count > info_.max_verify_tokens) {
    return who + "has " + std::to_string(item.token_count) + " tokens to verify, at most " + std::to_string(info_.max_verify_tokens) +
           " can be";
  }
  if (item.propose < 0 || item.propose > info_.max_proposals || (item.propose > 0 && !item.sample)) {
    return who + "is to propose " + std::to_string(item.propose) + " drafts";
  }
  if (item.first_position < 0 || end_of(item) > info_.max_model_len) {
    return who + "has an item that ends at position " + std::to_string(end_of(item)) + " of " + std::to_string(info_.max_model_len);
  }
  if (item.prompt_logprobs && *item.prompt_logprobs < 0) return who + "asks for a negative number of alternatives";
  // Planned before the fault was known, on the rows that the faulted step would have left: it computes nothing.
  if (state.faulted) return std::nullopt;
  // A draft model goes back over what it guessed.
  const bool goes_back = item.kind == work_kind::prefill && !has_penalties(state.sampling);
  if (state.position && (goes_back ? *state.position < item.first_position : *state.position != item.first_position)) {
    return who + "continues at position " + std::to_string(item.first_position) + " but stands at " + std::to_string(*state.position);
  }
  if (!state.position && item.first_position > 0 && has_penalties(state.sampling)) {
    return who + "has penalties but starts at position " + std::to_string(item.first_position) +
           ": the tokens before it are not known here";
  }
  if (item.kind == work_kind::prefill) return std::nullopt;
  if (!item.sample) return who + "has a decode or verify item that does not sample";
  if (!state.last_token) return who + "is to continue its last token but has sampled none";
  return std::nullopt;
}

// Rows write their keys and values: no block may be written for two items, or by one item in two places.
slot_table::breach slot_table::check_blocks(const work_item& item, const slot_state& state) {
  const std::size_t last = static_cast<std::size_t>((end_of(item) - 1) / info_.block_size);
  if (last >= state.blocks.size()) {
    return at_slot(item.slot) + "needs block " + std::to_string(last) + " but has " + std::to_string(state.blocks.size());
  }
  for (std::size_t i = static_cast<std::size_t>(item.first_position / info_.block_size); i <= last; ++i) {
    std::uint64_t& mark = block_mark_[static_cast<std::size_t>(state.blocks[i])];
    if (mark == mark_) return at_slot(item.slot) + "writes block " + std::to_string(state.blocks[i]) + ", which is written already";
    mark = mark_;
  }
  return std::nullopt;
}

} // namespace troupe
