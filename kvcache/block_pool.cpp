#include "kvcache/block_pool.hpp"

#include <numeric>
#include <stdexcept>
#include <string>

namespace troupe {

block_pool::block_pool(std::int32_t total) : free_(static_cast<std::size_t>(total)), out_(static_cast<std::size_t>(total), false) {
  std::iota(free_.rbegin(), free_.rend(), 0);
}

std::optional<std::vector<block_id>> block_pool::take(std::int32_t count) {
  if (count > free()) return std::nullopt;
  std::vector<block_id> blocks(free_.rbegin(), free_.rbegin() + count);
  free_.resize(free_.size() - static_cast<std::size_t>(count));
  for (block_id block : blocks) out_[static_cast<std::size_t>(block)] = true;
  return blocks;
}

void block_pool::give_back(const std::vector<block_id>& blocks) {
  for (block_id block : blocks) {
    if (block < 0 || block >= total() || !out_[static_cast<std::size_t>(block)]) {
      throw std::logic_error("block " + std::to_string(block) + " is not out");
    }
    out_[static_cast<std::size_t>(block)] = false;
    free_.push_back(block);
  }
}

} // namespace troupe
