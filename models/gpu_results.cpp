#include "models/gpu_results.hpp"

#include <algorithm>

namespace troupe {
namespace {

token_scores scores_of(const gpu::sampled_token& drawn, const scored_token* best) {
  return {{drawn.token, drawn.logprob}, {best, best + drawn.best}};
}

slot_output read_output(const awaited_item& awaited, const gpu::item_result& result, const gpu::sampled_token* drawn,
                        const scored_token* best) {
  slot_output out;
  out.slot = awaited.item.slot;
  out.numeric_fault = result.faulted != 0;
  if (out.numeric_fault) return out;
  const auto scored = [&](std::int32_t head) { return scores_of(drawn[head], best + std::ptrdiff_t{head} * gpu::most_best_tokens); };
  const std::int32_t first = awaited.item.first_head, draws = first + awaited.item.scores;
  for (std::int32_t head = first; head < draws; ++head) out.prompt_scores.push_back(scored(head));
  for (std::int32_t head = draws; head < draws + result.drawn; ++head) {
    out.tokens.push_back(drawn[head].token);
    if (awaited.top_logprobs) out.scores.push_back(scored(head));
  }
  return out;
}

} // namespace

std::vector<slot_output> read_outputs(const std::vector<awaited_item>& items, const download_layout& at, const std::byte* download) {
  const auto* results = reinterpret_cast<const gpu::item_result*>(download);
  const auto* drawn = reinterpret_cast<const gpu::sampled_token*>(download + at.drawn);
  const auto* best = reinterpret_cast<const scored_token*>(download + at.best);
  std::vector<slot_output> outputs;
  outputs.reserve(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) outputs.push_back(read_output(items[i], results[i], drawn, best));
  return outputs;
}

} // namespace troupe
