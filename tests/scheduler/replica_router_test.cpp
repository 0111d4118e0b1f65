#include "scheduler/replica_router.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace troupe {
namespace {

constexpr std::int32_t kBlock = 4;

router_config config(std::int32_t replicas, std::int32_t blocks = 64) { return {replicas, kBlock, blocks, {1, 2}}; }

std::vector<replica_load> loads(std::initializer_list<std::int64_t> sequences) {
  std::vector<replica_load> all;
  for (const std::int64_t n : sequences) all.push_back({true, n});
  return all;
}

std::vector<token_id> prompt(token_id first, std::size_t length) {
  std::vector<token_id> tokens;
  for (std::size_t i = 0; i < length; ++i) tokens.push_back(first + static_cast<token_id>(i));
  return tokens;
}

TEST(ReplicaRouter, EqualsTakeTurns) {
  replica_router router(config(3));
  std::map<std::size_t, int> count;
  for (token_id i = 0; i < 9; ++i) ++count[router.choose(prompt(100 * i, 3), "", loads({0, 0, 0}))];
  EXPECT_EQ(count, (std::map<std::size_t, int>{{0, 3}, {1, 3}, {2, 3}}));
}

TEST(ReplicaRouter, TheLeastLoadedWithoutAPrefix) {
  replica_router router(config(3));
  EXPECT_EQ(router.choose(prompt(0, 20), "", loads({2, 1, 2})), 1U);
}

TEST(ReplicaRouter, TheLongestPrefixWins) {
  replica_router router(config(2));
  const auto system = prompt(0, 8);
  auto longer = prompt(0, 16);
  EXPECT_EQ(router.choose(system, "", loads({0, 1})), 0U);
  EXPECT_EQ(router.choose(longer, "", loads({1, 0})), 0U) << "a block is held there";
  longer.push_back(999);
  EXPECT_EQ(router.choose(longer, "", loads({1, 0})), 0U);
  EXPECT_EQ(router.choose(prompt(500, 16), "", loads({1, 0})), 1U) << "another prompt";
}

TEST(ReplicaRouter, AnOverloadedReplicaIsNotWorthItsPrefix) {
  replica_router router(config(2));
  EXPECT_EQ(router.choose(prompt(0, 9), "", loads({0, 1})), 0U);
  EXPECT_EQ(router.choose(prompt(0, 9), "", loads({9, 4})), 0U) << "up to twice the least and one";
  EXPECT_EQ(router.choose(prompt(0, 9), "", loads({10, 4})), 1U);
  EXPECT_EQ(router.choose(prompt(0, 9), "", loads({5, 4})), 1U) << "both hold it now: the less loaded";
}

TEST(ReplicaRouter, SaltsAreApart) {
  replica_router router(config(2));
  EXPECT_EQ(router.choose(prompt(0, 9), "mine", loads({0, 1})), 0U);
  EXPECT_EQ(router.choose(prompt(0, 9), "yours", loads({1, 0})), 1U);
}

TEST(ReplicaRouter, TheLastTokensBlockIsComputedInAnyCase) {
  replica_router router(config(2));
  EXPECT_EQ(router.choose(prompt(0, kBlock), "", loads({0, 1})), 0U);
  EXPECT_EQ(router.choose(prompt(0, kBlock), "", loads({1, 0})), 1U) << "one whole block is no prefix of itself";
}

TEST(ReplicaRouter, ADownReplicaGetsNothingWhileAnotherIsUp) {
  replica_router router(config(2));
  router.choose(prompt(0, 9), "", loads({0, 1}));
  EXPECT_EQ(router.choose(prompt(0, 9), "", std::vector<replica_load>{{false, 0}, {true, 100}}), 1U);
  EXPECT_EQ(router.choose(prompt(40, 9), "", std::vector<replica_load>{{false, 0}, {false, 100}}), 0U) << "all are down: they queue";
}

TEST(ReplicaRouter, ALostReplicaHoldsNothing) {
  replica_router router(config(2));
  EXPECT_EQ(router.choose(prompt(0, 9), "", loads({0, 1})), 0U);
  router.forget(0);
  EXPECT_EQ(router.choose(prompt(0, 9), "", loads({1, 0})), 1U);
}

TEST(ReplicaRouter, RemembersNoMoreThanThePoolHoldsAndForgetsChainsFromTheirEnd) {
  replica_router router(config(2, 3)); // three blocks
  router.choose(prompt(0, 2 * kBlock + 1), "", loads({0, 1}));
  router.choose(prompt(100, 2 * kBlock + 1), "", loads({0, 1})); // one of the first prompt's two has to go
  EXPECT_EQ(router.choose(prompt(0, kBlock + 1), "", loads({1, 0})), 0U) << "its first block is left";
  router.choose(prompt(200, 3 * kBlock + 1), "", loads({0, 1}));
  EXPECT_EQ(router.choose(prompt(0, kBlock + 1), "", loads({1, 0})), 1U);
}

TEST(ReplicaRouter, ImbalanceStaysBoundedWhateverThePromptsShare) {
  replica_router router(config(4, 256));
  std::mt19937 random(7);
  std::vector<replica_load> now = loads({0, 0, 0, 0});
  for (int i = 0; i < 2000; ++i) {
    const bool shared = random() % 4 != 0;
    const auto tokens = shared ? prompt(0, 40) : prompt(static_cast<token_id>(1000 + random() % 500), 40);
    ++now[router.choose(tokens, "", now)].sequences;
    const auto [least, most] = std::minmax_element(now.begin(), now.end(), [](auto& a, auto& b) { return a.sequences < b.sequences; });
    ASSERT_LE(most->sequences, 2 * least->sequences + 2);
    if (random() % 2 == 0) {
      auto& some = now[random() % 4].sequences;
      some = std::max<std::int64_t>(0, some - 1);
      now = loads({now[0].sequences, now[1].sequences, now[2].sequences, now[3].sequences});
      if (std::any_of(now.begin(), now.end(), [](auto& l) { return l.sequences == 0; })) now = loads({0, 0, 0, 0});
    }
  }
}

TEST(ReplicaRouter, OneReplicaNeedsNoChoice) {
  replica_router router(config(1));
  EXPECT_EQ(router.choose({}, "", std::vector<replica_load>{{false, 7}}), 0U);
  EXPECT_THROW(router.choose({}, "", {}), std::invalid_argument);
  EXPECT_THROW(replica_router(config(0)), std::invalid_argument);
}

} // namespace
} // namespace troupe
