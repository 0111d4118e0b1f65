#include "models/row_sampler.hpp"

#include <algorithm>

#include "kernels/parallel.hpp"

namespace troupe {

row_sampler::row_sampler(cpu_model& model, std::int32_t vocab) : model_(model), vocab_(vocab) {
  for (int i = 0; i < model.pool().size(); ++i) samplers_.emplace_back(vocab);
}

void row_sampler::run(std::span<const head_row> heads, slot_table& slots, std::vector<slot_output>& outputs) {
  const std::size_t room = static_cast<std::size_t>(model_.shape().head_rows);
  for (std::size_t done = 0; done < heads.size(); done += room) {
    run_chunk(heads.subspan(done, std::min(room, heads.size() - done)), slots, outputs);
  }
}

void row_sampler::run_chunk(std::span<const head_row> heads, slot_table& slots, std::vector<slot_output>& outputs) {
  rows_.clear();
  groups_.clear();
  for (std::size_t i = 0; i < heads.size(); ++i) {
    rows_.push_back(heads[i].row);
    if (i == 0 || heads[i].item != heads[i - 1].item) groups_.push_back(i);
  }
  groups_.push_back(heads.size());
  const float* const logits = model_.logits(rows_);
  const std::int64_t stride = model_.logits_stride();
  // The rows of one item depend on each other, those of different items do not.
  cpu::share_out(model_.pool(), static_cast<std::int64_t>(groups_.size()) - 1, [&](std::int64_t worker, std::int64_t group) {
    const std::size_t g = static_cast<std::size_t>(group);
    slot_output& output = outputs[heads[groups_[g]].item];
    for (std::size_t i = groups_[g]; i < groups_[g + 1]; ++i) {
      take_row(heads[i], logits + static_cast<std::int64_t>(i) * stride, samplers_[static_cast<std::size_t>(worker)], slots[output.slot],
               output);
    }
  });
}

void row_sampler::take_row(const head_row& head, const float* logits, cpu::sampler& sampler, slot_state& slot, slot_output& output) {
  const bool rejected = head.drafts != output.tokens.size() || (head.drafts > 0 && head.draft != output.tokens.back());
  if (output.numeric_fault || rejected) return;
  const auto fault = [&] {
    output = {output.slot, {}, {}, {}, true};
    slot.faulted = true;
  };
  const sampling_params& params = slot.sampling;
  softmax_scale scale;
  if (head.target || (head.sample && params.top_logprobs)) {
    scale = cpu::log_softmax(logits, vocab_);
    if (!scale.usable) return fault();
  }
  if (head.target) output.prompt_scores.push_back(cpu::score_token(logits, vocab_, scale, *head.target, head.alternatives));
  if (!head.sample) return;
  const std::optional<token_id> token =
      sampler.sample({logits, &params, slot.history.seen(), head.next_position, head.next_position - slot.prompt_tokens});
  if (!token) return fault();
  output.tokens.push_back(*token);
  if (params.top_logprobs) output.scores.push_back(cpu::score_token(logits, vocab_, scale, *token, *params.top_logprobs));
  if (has_penalties(params)) slot.history.add(*token, head.next_position >= slot.prompt_tokens, vocab_);
}

} // namespace troupe
