#include "kvcache/prefix_index.hpp"

#include <algorithm>

namespace troupe {

prefix_index::prefix_index(std::int32_t total_blocks, std::int32_t block_size)
    : block_size_(static_cast<std::size_t>(block_size)),
      nodes_(static_cast<std::size_t>(total_blocks)),
      tokens_(nodes_.size() * block_size_) {}

std::span<token_id> prefix_index::tokens_of(block_id block) {
  return std::span(tokens_).subspan(static_cast<std::size_t>(block) * block_size_, block_size_);
}

bool prefix_index::holds(block_id block, std::optional<block_id> parent, std::span<const token_id> tokens, std::string_view salt) const {
  const node& n = at(block);
  if (n.parent != parent || (!parent && n.salt != salt)) return false;
  return std::equal(tokens.begin(), tokens.end(),
                    tokens_.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(block) * block_size_));
}

std::optional<block_id> prefix_index::find(std::optional<block_id> parent, std::uint64_t hash, std::span<const token_id> tokens,
                                           std::string_view salt) const {
  const auto [first, last] = by_hash_.equal_range(hash);
  const auto found = std::find_if(first, last, [&](const auto& entry) { return holds(entry.second, parent, tokens, salt); });
  if (found == last) return std::nullopt;
  return found->second;
}

void prefix_index::insert(std::optional<block_id> parent, std::uint64_t hash, std::span<const token_id> tokens, std::string_view salt,
                          block_id block) {
  node& n = at(block);
  n = {};
  n.present = true;
  n.hash = hash;
  n.parent = parent;
  if (parent) {
    ++at(*parent).children;
    n.depth = at(*parent).depth + 1;
  } else {
    n.salt = salt;
  }
  std::copy(tokens.begin(), tokens.end(), tokens_of(block).begin());
  by_hash_.emplace(hash, block);
}

void prefix_index::let_go(block_id block) {
  node& n = at(block);
  n.idle = true;
  n.turn = ++clock_ + static_cast<std::uint64_t>(n.depth);
  if (n.children == 0) leaves_.emplace(n.turn, block);
}

void prefix_index::take_back(block_id block) {
  node& n = at(block);
  n.idle = false;
  leaves_.erase({n.turn, block});
}

std::optional<block_id> prefix_index::evict() {
  if (leaves_.empty()) return std::nullopt;
  const block_id block = leaves_.begin()->second;
  leaves_.erase(leaves_.begin());
  remove(block);
  return block;
}

void prefix_index::remove(block_id block) {
  node& n = at(block);
  const auto [first, last] = by_hash_.equal_range(n.hash);
  by_hash_.erase(std::find_if(first, last, [&](const auto& entry) { return entry.second == block; }));
  n.present = false;
  if (!n.parent) return;
  node& parent = at(*n.parent);
  if (--parent.children == 0 && parent.idle) leaves_.emplace(parent.turn, *n.parent);
}

} // namespace troupe
