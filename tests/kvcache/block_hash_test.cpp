#include "kvcache/block_hash.hpp"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

namespace troupe {
namespace {

TEST(BlockHash, EveryInputChangesIt) {
  const std::vector<token_id> tokens = {1, 2, 3, 4};
  const std::vector<token_id> other = {1, 2, 3, 5};
  const auto hash = keyed_block_hash({1, 2});
  const std::set<std::uint64_t> all = {hash(0, tokens, ""),
                                       hash(1, tokens, ""),
                                       hash(0, other, ""),
                                       hash(0, tokens, "a"),
                                       hash(0, tokens, "b"),
                                       hash(0, tokens, "ab"),
                                       keyed_block_hash({1, 3})(0, tokens, ""),
                                       keyed_block_hash({2, 2})(0, tokens, "")};
  EXPECT_EQ(all.size(), 8U);
  EXPECT_EQ(hash(7, tokens, "x"), keyed_block_hash({1, 2})(7, tokens, "x"));
}

TEST(BlockHash, OneFlippedBitFlipsHalfOfThem) {
  std::mt19937 random(3);
  const auto hash = keyed_block_hash({17, 99});
  int flipped = 0;
  for (int i = 0; i < 1000; ++i) {
    std::vector<token_id> tokens(16);
    for (token_id& t : tokens) t = static_cast<token_id>(random() % 1000);
    const std::uint64_t before = hash(0, tokens, "");
    tokens[random() % 16] ^= 1 << random() % 10;
    flipped += __builtin_popcountll(before ^ hash(0, tokens, ""));
  }
  EXPECT_NEAR(flipped / 1000.0, 32, 1); // 8 standard deviations
}

} // namespace
} // namespace troupe
