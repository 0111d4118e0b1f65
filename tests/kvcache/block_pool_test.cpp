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
  EXPECT_EQ(pool.held(), 10);
}

TEST(BlockPool, TooManyTakesNone) {
  block_pool pool(3);
  EXPECT_FALSE(pool.take(4));
  EXPECT_EQ(pool.free(), 3);
}

TEST(BlockPool, ABlockIsParkedWhenItsLastOwnerDropsItAndFreeWhenToldSo) {
  block_pool pool(3);
  const block_id block = pool.take(1)->front();
  pool.share(block);
  EXPECT_FALSE(pool.drop(block));
  EXPECT_TRUE(pool.drop(block));
  EXPECT_EQ(pool.parked(), 1);
  EXPECT_FALSE(pool.take(3)); // a parked block is not given out
  pool.share(block);
  EXPECT_EQ(pool.held(), 1);
  EXPECT_TRUE(pool.drop(block));
  pool.free_parked(block);
  EXPECT_EQ(pool.free(), 3);
  EXPECT_EQ(pool.take(1)->front(), block); // freed last, out first
}

TEST(BlockPool, ACallThatDoesNotFitTheStateThrows) {
  block_pool pool(3);
  const block_id block = pool.take(1)->front();
  EXPECT_THROW(pool.free_parked(block), std::logic_error);
  EXPECT_TRUE(pool.drop(block));
  EXPECT_THROW(pool.drop(block), std::logic_error);
  pool.free_parked(block);
  EXPECT_THROW(pool.free_parked(block), std::logic_error);
  EXPECT_THROW(pool.share(block), std::logic_error);
  EXPECT_THROW(pool.drop(7), std::logic_error);
  EXPECT_THROW(pool.share(-1), std::logic_error);
}

TEST(BlockPool, BlocksForRoundsUp) {
  EXPECT_EQ(blocks_for(0, 16), 0);
  EXPECT_EQ(blocks_for(1, 16), 1);
  EXPECT_EQ(blocks_for(16, 16), 1);
  EXPECT_EQ(blocks_for(17, 16), 2);
}

} // namespace
} // namespace troupe
