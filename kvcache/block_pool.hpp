// Which KV blocks are free. Integers only: the bytes belong to the devices.
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

// Hands out blocks 0 .. total-1, each to one owner at a time; the block freed last goes out first, while its bytes are warm.
class block_pool {
 public:
  explicit block_pool(std::int32_t total);

  // `count` blocks, or none at all when fewer are free.
  std::optional<std::vector<block_id>> take(std::int32_t count);
  // Throws std::logic_error when a block is not out: a block has exactly one owner, who frees it once.
  void give_back(const std::vector<block_id>& blocks);

  std::int32_t total() const noexcept { return static_cast<std::int32_t>(out_.size()); }
  std::int32_t free() const noexcept { return static_cast<std::int32_t>(free_.size()); }
  std::int32_t used() const noexcept { return total() - free(); }

 private:
  std::vector<block_id> free_; // taken from the back
  std::vector<bool> out_;
};

} // namespace troupe
