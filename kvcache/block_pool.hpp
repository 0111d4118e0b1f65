// Which KV blocks are free, and how many owners the others have. Integers only: the bytes belong to the devices.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/ids.hpp"

namespace troupe {

// Blocks a sequence of `tokens` tokens needs.
constexpr std::int32_t blocks_for(std::int64_t tokens, std::int32_t block_size) {
  return static_cast<std::int32_t>((tokens + block_size - 1) / block_size);
}

// Blocks 0 .. total-1. Each is free, held (one owner or more), or parked (no owner, but not to be overwritten yet); the block freed
// last goes out first, while its bytes are warm. A call that does not fit a block's state throws std::logic_error.
class block_pool {
 public:
  explicit block_pool(std::int32_t total);

  // `count` free blocks, now held once each, or none at all when fewer are free.
  std::optional<std::vector<block_id>> take(std::int32_t count);
  // One more owner of a held or parked block.
  void share(block_id block);
  // One owner fewer of a held block. True when that was the last: the block is then parked.
  bool drop(block_id block);
  // A parked block becomes free.
  void free_parked(block_id block);

  std::int32_t total() const noexcept { return static_cast<std::int32_t>(owners_.size()); }
  std::int32_t free() const noexcept { return static_cast<std::int32_t>(free_.size()); }
  std::int32_t parked() const noexcept { return parked_; }
  std::int32_t held() const noexcept { return total() - free() - parked(); }
  std::int32_t owners(block_id block) const { return owners_[index(block)]; }

 private:
  std::size_t index(block_id block) const;

  std::vector<block_id> free_; // taken from the back
  std::vector<std::int32_t> owners_;
  std::vector<bool> is_free_;
  std::int32_t parked_ = 0;
};

} // namespace troupe
