#include "kvcache/block_pool.hpp"

#include <gtest/gtest.h>

#include <set>

namespace troupe {
namespace {

TEST(BlockPool, HandsOutEachBlockOnceAndAllOfThem) {
  block_pool pool(10);
  auto a = pool.take(4);
  auto b = pool.take(6);
  ASSERT_TRUE(a && b);
  std::set<block_id> all(a->begin(), a->end());
  all.insert(b->begin(), b->end());
  EXPECT_EQ(all.size(), 10U);
  EXPECT_EQ(*all.begin(), 0);
  EXPECT_EQ(*all.rbegin(), 9);
  EXPECT_EQ(pool.free(), 0);
}

TEST(BlockPool, TooManyTakesNone) {
  block_pool pool(3);
  EXPECT_FALSE(pool.take(4));
  EXPECT_EQ(pool.free(), 3);
}

TEST(BlockPool, FreeingTwiceOrAStrangerThrows) {
  block_pool pool(3);
  auto a = pool.take(2);
  pool.give_back(*a);
  EXPECT_THROW(pool.give_back(*a), std::logic_error);
  EXPECT_THROW(pool.give_back({7}), std::logic_error);
  EXPECT_EQ(pool.used(), 0);
}

TEST(BlockPool, BlocksForRoundsUp) {
  EXPECT_EQ(blocks_for(0, 16), 0);
  EXPECT_EQ(blocks_for(1, 16), 1);
  EXPECT_EQ(blocks_for(16, 16), 1);
  EXPECT_EQ(blocks_for(17, 16), 2);
}

} // namespace
} // namespace troupe
