#include "scheduler/replica_router.hpp"

#include <algorithm>
#include <limits>
#include <optional>
#include <stdexcept>
#include <tuple>

namespace troupe {

void replica_router::memory::use(std::uint64_t block) {
  if (most_ == 0) return;
  if (const auto found = at_.find(block); found != at_.end()) {
    by_use_.splice(by_use_.begin(), by_use_, found->second);
    return;
  }
  if (at_.size() == most_) {
    at_.erase(by_use_.back());
    by_use_.pop_back();
  }
  by_use_.push_front(block);
  at_.emplace(block, by_use_.begin());
}

void replica_router::memory::clear() {
  by_use_.clear();
  at_.clear();
}

replica_router::replica_router(const router_config& config)
    : block_size_(static_cast<std::size_t>(std::max(1, config.block_size))), hash_(keyed_block_hash(config.hash_key)) {
  if (config.replicas < 1) throw std::invalid_argument("replica_router: at least one replica is needed");
  memories_.assign(static_cast<std::size_t>(config.replicas), memory(static_cast<std::size_t>(std::max(0, config.num_blocks))));
}

// As in the prefix cache: the last token's row is computed in any case, and a hash covers all that is before its block.
std::vector<std::uint64_t> replica_router::blocks_of(std::span<const token_id> prompt, std::string_view salt) const {
  std::vector<std::uint64_t> blocks;
  for (std::size_t end = block_size_; end < prompt.size(); end += block_size_) {
    blocks.push_back(hash_(blocks.empty() ? 0 : blocks.back(), prompt.subspan(end - block_size_, block_size_), salt));
  }
  return blocks;
}

std::size_t replica_router::pick(const std::vector<std::uint64_t>& blocks, std::span<const replica_load> loads) {
  const bool any_up = std::any_of(loads.begin(), loads.end(), [](const replica_load& l) { return l.up; });
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (const replica_load& l : loads) {
    if (l.up || !any_up) least = std::min(least, l.sequences);
  }
  std::optional<std::tuple<std::ptrdiff_t, std::int64_t>> best; // longest first, then least loaded
  std::size_t chosen = 0;
  for (std::size_t i = 0; i < loads.size(); ++i) {
    const std::size_t r = (next_ + i) % loads.size();
    if ((any_up && !loads[r].up) || !worth_waiting(loads[r].sequences, least)) continue;
    const auto end = std::find_if_not(blocks.begin(), blocks.end(), [&](std::uint64_t b) { return memories_[r].holds(b); });
    const std::tuple rank(-(end - blocks.begin()), loads[r].sequences);
    if (!best || rank < *best) best = rank, chosen = r;
  }
  next_ = (chosen + 1) % loads.size();
  return chosen;
}

std::size_t replica_router::choose(std::span<const token_id> prompt, std::string_view salt, std::span<const replica_load> loads) {
  if (loads.size() != memories_.size()) throw std::invalid_argument("replica_router: a load per replica is needed");
  if (loads.size() == 1) return 0;
  const auto blocks = blocks_of(prompt, salt);
  const std::size_t chosen = pick(blocks, loads);
  // Backwards, so that the blocks that prompts begin with are the ones used last: a chain is forgotten from its end.
  std::for_each(blocks.rbegin(), blocks.rend(), [&](std::uint64_t b) { memories_[chosen].use(b); });
  return chosen;
}

void replica_router::forget(std::size_t replica) { memories_.at(replica).clear(); }

} // namespace troupe
