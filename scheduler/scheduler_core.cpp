#include "scheduler/scheduler_core.hpp"

#include <algorithm>
#include <utility>

namespace troupe {

scheduler_core::scheduler_core(scheduler_config c)
    : config(std::move(c)),
      cache(config.device.num_blocks, config.device.block_size),
      sequences(config.device.max_num_seqs),
      drafting(config.speculation, config.device) {
  if (!config.hash) config.hash = keyed_block_hash(config.hash_key);
}

void scheduler_core::release(sequence_state& s) {
  if (!s.slot) return;
  cache.give_back(s.blocks);
  to_close.push_back(*s.slot);
  sequences.stop(s);
}

void scheduler_core::end(sequence_state& s) {
  release(s);
  deadlines.remove(s);
  sequences.erase(s);
}

block_content scheduler_core::content_of(sequence_state& s, std::int32_t index, std::optional<block_id> parent) {
  const std::int32_t size = config.device.block_size;
  tokens_.clear();
  for (std::int32_t p = index * size; p < (index + 1) * size; ++p) tokens_.push_back(s.token_at(p));
  if (static_cast<std::size_t>(index) == s.block_hashes.size()) {
    s.block_hashes.push_back(config.hash(index == 0 ? 0 : s.block_hashes.back(), tokens_, s.request.cache_salt));
  }
  return {parent, s.block_hashes[static_cast<std::size_t>(index)], tokens_, s.request.cache_salt};
}

std::vector<block_id> scheduler_core::find_prefix(sequence_state& s) {
  std::vector<block_id> found;
  if (!config.prefix_caching || s.needs_every_row()) return found;
  const std::int32_t most = (s.known() - 1) / config.device.block_size;
  for (std::int32_t i = 0; i < most; ++i) {
    const auto block = cache.find(content_of(s, i, found.empty() ? std::nullopt : std::optional(found.back())));
    if (!block) break;
    found.push_back(*block);
  }
  return found;
}

void scheduler_core::give_back_drafts(sequence_state& s) {
  const auto keep = static_cast<std::size_t>(blocks_of(s.planned + static_cast<std::int32_t>(s.proposals.size())));
  if (s.blocks.size() <= keep) return;
  cache.give_back({s.blocks.begin() + static_cast<std::ptrdiff_t>(keep), s.blocks.end()});
  s.blocks.resize(keep);
}

std::int32_t scheduler_core::drafts_for(const sequence_state& s) const {
  // Of the outputs that are left, the step's own draw is one.
  const std::int32_t most = std::min(drafting.max_drafts(), s.request.stop.max_tokens - s.output_size() - 1);
  if (!s.can_decode() || most < 1) return 0;
  if (drafting.source() == draft_source::ngram && !s.ngrams.matches()) return 0;
  return drafting.run_length(s.accepted[s.draft_kind()], most);
}

void scheduler_core::index_blocks(sequence_state& s) {
  if (!config.prefix_caching) return;
  for (std::int32_t i = s.indexed; (i + 1) * config.device.block_size <= s.confirmed; ++i) {
    block_id& mine = s.blocks[static_cast<std::size_t>(i)];
    const auto parent = i == 0 ? std::nullopt : std::optional(s.blocks[static_cast<std::size_t>(i) - 1]);
    const block_id kept = cache.insert(content_of(s, i, parent), mine);
    if (kept != mine) changes.push_back({s.life, *s.slot, i, kept});
    mine = kept;
    s.indexed = i + 1;
  }
}

} // namespace troupe
