#include "kvcache/kv_cache.hpp"

#include <gtest/gtest.h>

namespace troupe {
namespace {

using tokens = std::vector<token_id>;

// A cache of blocks of two tokens under a hash that finds everything everywhere: only the comparison of contents tells blocks apart.
struct cache_of_pairs {
  explicit cache_of_pairs(std::int32_t blocks) : cache(blocks, 2) {}

  // Computes a chain and lets it go.
  std::vector<block_id> remember(const tokens& content, std::string_view salt = "") {
    auto blocks = *cache.take(static_cast<std::int32_t>(content.size()) / 2);
    for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i] = cache.insert(content_of(content, i, blocks, salt), blocks[i]);
    cache.give_back(blocks);
    return blocks;
  }
  std::vector<block_id> find(const tokens& content, std::string_view salt = "") {
    std::vector<block_id> blocks;
    for (std::size_t i = 0; i < content.size() / 2; ++i) {
      const auto block = cache.find(content_of(content, i, blocks, salt));
      if (!block) break;
      blocks.push_back(*block);
    }
    return blocks;
  }
  static block_content content_of(const tokens& content, std::size_t i, const std::vector<block_id>& blocks, std::string_view salt) {
    return {i == 0 ? std::nullopt : std::optional(blocks[i - 1]), 42, std::span(content).subspan(i * 2, 2), salt};
  }

  kv_cache cache;
};

TEST(KvCache, FindsTheLongestChainEvenUnderAConstantHash) {
  cache_of_pairs c(20);
  const auto a = c.remember({1, 2, 3, 4, 5, 6});
  const auto b = c.remember({3, 4, 1, 2});
  EXPECT_EQ(c.find({1, 2, 3, 4, 9, 9}), (std::vector{a[0], a[1]}));
  EXPECT_EQ(c.find({3, 4, 3, 4}), std::vector{b[0]}); // 3 4 behind 1 2 is another block
  EXPECT_EQ(c.find({5, 6}), std::vector<block_id>{});
  EXPECT_EQ(c.cache.used(), 3);
  EXPECT_EQ(c.cache.cached(), 2);
}

TEST(KvCache, OneSaltDoesNotFindWhatAnotherComputed) {
  cache_of_pairs c(20);
  const auto a = c.remember({1, 2, 3, 4}, "a");
  const auto b = c.remember({1, 2, 3, 4}, "b");
  EXPECT_TRUE(c.find({1, 2, 3, 4}).empty());
  EXPECT_EQ(c.find({1, 2, 3, 4}, "a"), a);
  EXPECT_EQ(c.find({1, 2, 3, 4}, "b"), b);
  EXPECT_NE(a, b);
}

TEST(KvCache, KnownContentIsKeptOnceAndTheDoubleIsFree) {
  cache_of_pairs c(20);
  const auto a = c.remember({1, 2, 3, 4});
  EXPECT_EQ(c.remember({1, 2, 3, 4}), a);
  EXPECT_EQ(c.cache.cached(), 2);
  EXPECT_EQ(c.cache.free(), 18);
}

TEST(KvCache, GivesCachedBlocksOutLeavesFirstAndTheOldestOfThem) {
  cache_of_pairs c(6);
  c.remember({1, 2, 3, 4});
  c.remember({5, 6, 7, 8, 9, 9});
  EXPECT_TRUE(c.cache.take(2)); // one free, and the end of the older chain
  EXPECT_EQ(c.find({1, 2, 3, 4}).size(), 1U);
  EXPECT_EQ(c.find({5, 6, 7, 8, 9, 9}).size(), 3U);
}

TEST(KvCache, AUseMakesAChainYoungAgain) {
  cache_of_pairs c(4);
  c.remember({1, 2, 3, 4});
  c.remember({5, 6, 7, 8});
  c.cache.give_back(c.find({1, 2, 3, 4}));
  EXPECT_TRUE(c.cache.take(2));
  EXPECT_TRUE(c.find({5, 6}).empty());
  EXPECT_EQ(c.find({1, 2, 3, 4}).size(), 2U);
}

TEST(KvCache, TheEndOfALongChainOutlivesAShortOneThatIsALittleYounger) {
  cache_of_pairs c(9);
  c.remember({1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8}); // its end would cost eight blocks' work
  c.remember({9, 9});
  EXPECT_TRUE(c.cache.take(1));
  EXPECT_TRUE(c.find({9, 9}).empty());
}

TEST(KvCache, WhatHasAnOwnerIsNeverGivenOut) {
  cache_of_pairs c(4);
  c.remember({1, 2, 3, 4});
  const auto mine = c.find({1, 2, 3, 4});
  EXPECT_FALSE(c.cache.take(3));
  EXPECT_TRUE(c.cache.take(2));
  EXPECT_FALSE(c.cache.take(1));
  EXPECT_THROW(c.cache.forget(), std::logic_error);
  c.cache.give_back(mine);
  EXPECT_EQ(c.cache.available(), 2);
}

TEST(KvCache, ForgetsEverything) {
  cache_of_pairs c(8);
  c.remember({1, 2, 3, 4});
  c.remember({1, 2, 7, 8});
  c.cache.forget();
  EXPECT_EQ(c.cache.free(), 8);
  EXPECT_TRUE(c.find({1, 2}).empty());
}

} // namespace
} // namespace troupe
