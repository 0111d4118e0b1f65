#include "kvcache/kv_cache.hpp"

#include <algorithm>
#include <stdexcept>

namespace troupe {

kv_cache::kv_cache(std::int32_t total_blocks, std::int32_t block_size) : pool_(total_blocks), index_(total_blocks, block_size) {}

std::optional<std::vector<block_id>> kv_cache::take(std::int32_t count) {
  if (count > available()) return std::nullopt;
  while (count > pool_.free()) evict_one();
  return pool_.take(count);
}

void kv_cache::evict_one() {
  const std::optional<block_id> block = index_.evict();
  if (!block) throw std::logic_error("a cached block has a descendant with an owner");
  pool_.free_parked(*block);
}

void kv_cache::share(block_id block) {
  if (pool_.owners(block) == 0) index_.take_back(block);
  pool_.share(block);
}

void kv_cache::drop(block_id block) {
  if (!pool_.drop(block)) return;
  if (index_.contains(block)) {
    index_.let_go(block);
  } else {
    pool_.free_parked(block);
  }
}

void kv_cache::give_back(const std::vector<block_id>& blocks) {
  std::for_each(blocks.begin(), blocks.end(), [this](block_id b) { drop(b); });
}

std::optional<block_id> kv_cache::find(const block_content& content) {
  const auto found = index_.find(content.parent, content.hash, content.tokens, content.salt);
  if (found) share(*found);
  return found;
}

block_id kv_cache::insert(const block_content& content, block_id block) {
  if (const auto known = find(content)) {
    drop(block);
    return *known;
  }
  index_.insert(content.parent, content.hash, content.tokens, content.salt, block);
  return block;
}

void kv_cache::forget() {
  while (cached() > 0) evict_one();
  if (used() > 0) throw std::logic_error("blocks are forgotten that have owners");
}

} // namespace troupe
