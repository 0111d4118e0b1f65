#include "models/gpu_step.hpp"

#include <algorithm>

#include "kernels/sampling.hpp"

namespace troupe {
namespace {

void list_opened(const slot_open& opened, gpu_step& step) {
  const sampling_params& params = opened.sampling;
  gpu::opened_slot slot{opened.slot, gpu::slot_of(params, opened.prompt_tokens)};
  slot.sampling.biases = 0;
  for (const token_bias& bias : params.logit_bias) { // a token that is listed twice gets the sum
    const auto mine = step.biases.end() - slot.sampling.biases;
    const auto same = std::find_if(mine, step.biases.end(), [&](const gpu::listed_token& l) { return l.entry.token == bias.token; });
    if (same != step.biases.end()) {
      same->entry.bias += bias.bias;
    } else {
      step.biases.push_back({opened.slot, slot.sampling.biases++, bias});
    }
  }
  slot.sampling.suppressed = 0;
  for (const token_id token : params.suppressed) {
    step.suppressed.push_back({opened.slot, slot.sampling.suppressed++, {token, 0}});
  }
  step.opened.push_back(slot);
  if (has_penalties(params)) step.forgotten.push_back(opened.slot);
}

void list_grant(const block_grant& grant, slot_table& slots, gpu_step& step) {
  const std::vector<block_id>& blocks = slots[grant.slot].blocks;
  for (std::size_t i = 0; i < grant.blocks.size(); ++i) {
    const std::size_t index = static_cast<std::size_t>(grant.first_block) + i;
    step.tables.push_back({grant.slot, static_cast<std::int32_t>(index), blocks[index]});
  }
}

// One item's rows and heads. `tokens`: what the plan carries for it.
class item_layout {
 public:
  item_layout(const work_item& item, const slot_state& slot, const token_id* tokens, gpu_step& step)
      : item_(item), slot_(slot), tokens_(tokens), step_(step), first_row_(static_cast<std::int32_t>(step.rows.size())) {}

  gpu::step_item add() {
    add_rows();
    gpu::step_item out{item_.slot, static_cast<std::int32_t>(step_.heads.size()), 0, 0};
    const std::int32_t scored = scored_rows(item_, slot_.prompt_tokens);
    for (std::int32_t row = 0; row < scored; ++row) {
      gpu::step_head& head = add_head(row, gpu::sampling_row::work::score);
      head.sampling.target = tokens_[row + 1];
      head.sampling.alternatives = *item_.prompt_logprobs;
    }
    out.scores = scored;
    if (item_.kind == work_kind::verify && item_.token_count > 1) {
      for (std::int32_t row = 0; row < item_.token_count; ++row) {
        add_head(row, gpu::sampling_row::work::draw_uncounted).sampling.drafts = row;
      }
      out.draws = item_.token_count;
      step_.verifies = true;
    } else if (item_.sample) {
      add_head(item_.token_count - 1, gpu::sampling_row::work::draw);
      out.draws = 1;
    }
    step_.reports = step_.reports || scored > 0 || (out.draws > 0 && slot_.sampling.top_logprobs);
    return out;
  }

 private:
  void add_rows() {
    for (std::int32_t row = 0; row < item_.token_count; ++row) {
      const bool from_sample = item_.kind != work_kind::prefill && row == 0;
      const token_id token = from_sample ? -1 : tokens_[item_.kind == work_kind::verify ? row - 1 : row];
      step_.rows.push_back({item_.slot, item_.first_position + row, token});
      if (item_.kind == work_kind::prefill && has_penalties(slot_.sampling)) {
        step_.counted.push_back({item_.slot, token, item_.first_position + row >= slot_.prompt_tokens ? 1 : 0});
      }
    }
    if (item_.kind != work_kind::decode) step_.spans.push_back({first_row_, item_.token_count, item_.first_position, item_.slot});
  }

  gpu::step_head& add_head(std::int32_t row, gpu::sampling_row::work kind) {
    gpu::step_head head;
    head.row = first_row_ + row;
    head.sampling.kind = kind;
    head.sampling.slot = item_.slot;
    head.sampling.position = std::int64_t{item_.first_position} + row + 1;
    step_.heads.push_back(head);
    return step_.heads.back();
  }

  const work_item& item_;
  const slot_state& slot_;
  const token_id* tokens_;
  gpu_step& step_;
  std::int32_t first_row_;
};

void move_on(const work_item& item, slot_state& slot) {
  slot.position = item.first_position + item.token_count;
  if (item.kind == work_kind::verify && item.token_count > 1) slot.position.reset();
  slot.last_token = item.sample ? std::optional<token_id>(0) : std::nullopt; // which one, the device knows
}

} // namespace

void gpu_step::clear() {
  opened.clear(), forgotten.clear(), tables.clear(), biases.clear(), suppressed.clear(), copies.clear();
  rows.clear(), spans.clear(), heads.clear(), items.clear(), counted.clear();
  decode_rows = 0;
  reports = verifies = false;
}

void lay_out(const step_plan& plan, slot_table& slots, gpu_step& step) {
  step.clear();
  for (const slot_open& opened : plan.opened) list_opened(opened, step);
  for (const block_grant& grant : plan.grants) list_grant(grant, slots, step);
  for (const block_copy& copy : plan.copies) step.copies.push_back({copy.from, copy.to});
  step.items.resize(plan.items.size());
  for (const bool decodes : {true, false}) {
    const token_id* carried = plan.tokens.data();
    for (std::size_t i = 0; i < plan.items.size(); ++i) {
      const work_item& item = plan.items[i];
      slot_state& slot = slots[item.slot];
      const token_id* const mine = carried;
      carried += tokens_of(item, slot.prompt_tokens);
      if ((item.kind == work_kind::decode) != decodes) continue;
      step.items[i] = item_layout(item, slot, mine, step).add();
      move_on(item, slot);
    }
    if (decodes) step.decode_rows = static_cast<std::int32_t>(step.rows.size());
  }
}

std::optional<std::string> beyond_device(const step_plan& plan) {
  const auto too_many = [](slot_id slot, std::size_t count, std::int32_t most, const char* what) -> std::optional<std::string> {
    if (count <= static_cast<std::size_t>(most)) return std::nullopt;
    return "slot " + std::to_string(slot) + " asks for " + std::to_string(count) + " " + what + ", the device takes " +
           std::to_string(most);
  };
  for (const slot_open& opened : plan.opened) {
    const sampling_params& p = opened.sampling;
    if (auto found = too_many(opened.slot, p.logit_bias.size(), gpu::most_biased_tokens, "biased tokens")) return found;
    if (auto found = too_many(opened.slot, p.suppressed.size(), gpu::most_biased_tokens, "suppressed tokens")) return found;
    const std::int32_t best = std::max(0, p.top_logprobs.value_or(0));
    if (auto found = too_many(opened.slot, static_cast<std::size_t>(best), gpu::most_best_tokens, "logprobs of a token")) return found;
  }
  for (const work_item& item : plan.items) {
    const std::int32_t best = std::max(0, item.prompt_logprobs.value_or(0));
    if (auto found = too_many(item.slot, static_cast<std::size_t>(best), gpu::most_best_tokens, "logprobs of a prompt token")) return found;
  }
  return std::nullopt;
}

} // namespace troupe
