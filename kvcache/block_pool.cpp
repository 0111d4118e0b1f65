#include "kvcache/block_pool.hpp"

#include <numeric>
#include <stdexcept>
#include <string>

namespace troupe {
namespace {

void require(bool holds, block_id block, const char* what) {
  if (!holds) throw std::logic_error("block " + std::to_string(block) + what);
}

} // namespace

block_pool::block_pool(std::int32_t total)
    : free_(static_cast<std::size_t>(total)), owners_(static_cast<std::size_t>(total), 0), is_free_(static_cast<std::size_t>(total), true) {
  std::iota(free_.rbegin(), free_.rend(), 0);
}

std::size_t block_pool::index(block_id block) const {
  require(block >= 0 && block < total(), block, " is not of this pool");
  return static_cast<std::size_t>(block);
}

std::optional<std::vector<block_id>> block_pool::take(std::int32_t count) {
  if (count > free()) return std::nullopt;
  std::vector<block_id> blocks(free_.rbegin(), free_.rbegin() + count);
  free_.resize(free_.size() - static_cast<std::size_t>(count));
  for (block_id block : blocks) {
    is_free_[index(block)] = false;
    owners_[index(block)] = 1;
  }
  return blocks;
}

void block_pool::share(block_id block) {
  require(!is_free_[index(block)], block, " is free and cannot be shared");
  if (owners_[index(block)]++ == 0) --parked_;
}

bool block_pool::drop(block_id block) {
  require(owners_[index(block)] > 0, block, " has no owner");
  if (--owners_[index(block)] > 0) return false;
  ++parked_;
  return true;
}

void block_pool::free_parked(block_id block) {
  require(!is_free_[index(block)] && owners_[index(block)] == 0, block, " is not parked");
  is_free_[index(block)] = true;
  --parked_;
  free_.push_back(block);
}

} // namespace troupe
