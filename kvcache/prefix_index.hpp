// Which block holds which prefix. A full block is known by its tokens and the block before it; a hash only finds candidates.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/ids.hpp"

namespace troupe {

// A tree: the children of a block are the blocks that followed it in some sequence. First blocks are told apart by salt, too, so what
// was computed under one salt is never found under another.
class prefix_index {
 public:
  prefix_index(std::int32_t total_blocks, std::int32_t block_size);

  // The block with just this content, or none.
  std::optional<block_id> find(std::optional<block_id> parent, std::uint64_t hash, std::span<const token_id> tokens,
                               std::string_view salt) const;
  // `block` must not be in the index, nor its content; `parent` must be.
  void insert(std::optional<block_id> parent, std::uint64_t hash, std::span<const token_id> tokens, std::string_view salt, block_id block);
  bool contains(block_id block) const { return at(block).present; }

  // A block that nobody owns may be evicted, once its children are gone. Its turn comes by recency and cost: the clock counts blocks
  // that were let go, and a block counts as so much younger as there are blocks before it, for recomputing it would need their rows.
  void let_go(block_id block);
  void take_back(block_id block);
  // Removes and returns the block whose turn it is; none when nothing may be evicted.
  std::optional<block_id> evict();

 private:
  struct node {
    bool present = false;
    bool idle = false; // let go
    std::uint64_t hash = 0;
    std::optional<block_id> parent;
    std::int32_t children = 0;
    std::int32_t depth = 0; // blocks before it
    std::uint64_t turn = 0;
    std::string salt; // of a first block
  };

  node& at(block_id block) { return nodes_[static_cast<std::size_t>(block)]; }
  const node& at(block_id block) const { return nodes_[static_cast<std::size_t>(block)]; }
  std::span<token_id> tokens_of(block_id block);
  bool holds(block_id block, std::optional<block_id> parent, std::span<const token_id> tokens, std::string_view salt) const;
  void remove(block_id block);

  std::size_t block_size_;
  std::vector<node> nodes_;      // by block
  std::vector<token_id> tokens_; // by block, block_size_ each
  std::unordered_multimap<std::uint64_t, block_id> by_hash_;
  std::set<std::pair<std::uint64_t, block_id>> leaves_; // (turn, block): idle and without children
  std::uint64_t clock_ = 0;
};

} // namespace troupe
