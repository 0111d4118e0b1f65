// The blocks of one device group: who owns them, and which prefixes can be found again.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/ids.hpp"
#include "kvcache/block_pool.hpp"
#include "kvcache/prefix_index.hpp"

namespace troupe {

// Content of one full block as it is looked up.
struct block_content {
  std::optional<block_id> parent; // the block before it, itself in the index; none for a first block
  std::uint64_t hash = 0;
  std::span<const token_id> tokens; // block_size
  std::string_view salt;
};

// used + cached + free = total. Whoever owns an indexed block owns the blocks before it as well, so that every cached block can be
// evicted: no descendant of it has an owner.
class kv_cache {
 public:
  kv_cache(std::int32_t total_blocks, std::int32_t block_size);

  // `count` blocks, from the free ones first and then by evicting cached ones; or none at all.
  std::optional<std::vector<block_id>> take(std::int32_t count);
  // One more owner.
  void share(block_id block);
  // One owner fewer for each; what is in the index and has no owner left stays as cached. Give back whole chains, in order.
  void give_back(const std::vector<block_id>& blocks);
  // The block with this content, which the caller now owns too; or none.
  std::optional<block_id> find(const block_content& content);
  // `block`, which the caller owns, is complete. Returns the block to use from here on: another one when the index knew the content
  // already; the caller then owns that one instead, and `block` is free.
  block_id insert(const block_content& content, block_id block);
  // Forgets all cached content. No block may have an owner.
  void forget();

  std::int32_t total() const noexcept { return pool_.total(); }
  std::int32_t free() const noexcept { return pool_.free(); }
  std::int32_t cached() const noexcept { return pool_.parked(); }
  std::int32_t used() const noexcept { return pool_.held(); }
  std::int32_t available() const noexcept { return free() + cached(); }

 private:
  void drop(block_id block);
  void evict_one();

  block_pool pool_;
  prefix_index index_;
};

} // namespace troupe
