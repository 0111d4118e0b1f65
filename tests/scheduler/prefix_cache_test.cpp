#include <gtest/gtest.h>

#include <random>

#include "tests/scheduler/scheduler_testing.hpp"

namespace troupe {
namespace {

using namespace test;

std::vector<token_id> random_prompt(std::mt19937& random, std::size_t length) {
  std::vector<token_id> prompt(length);
  for (token_id& t : prompt) t = static_cast<token_id>(random() % kVocab);
  return prompt;
}

std::vector<token_id> joined(std::vector<token_id> a, const std::vector<token_id>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Serves one request alone; its cached tokens.
std::int32_t serve(bench& b, sequence_request r) {
  const sequence_id id = r.id;
  const auto expected = reference(r.prompt, r.stop.max_tokens);
  EXPECT_FALSE(b.sched.add(std::move(r), 0));
  b.run();
  EXPECT_EQ(b.tokens[id], expected);
  return b.ends[id].cached_tokens;
}

scheduler_config config(executor_info info, bool caching = true, block_hash hash = {}) {
  scheduler_config c;
  c.device = info;
  c.prefix_caching = caching;
  c.hash = std::move(hash);
  return c;
}

TEST(PrefixCache, ASecondSendingComputesTheLastBlockAlone) {
  std::mt19937 random(1);
  for (const std::int32_t length : {1, 3, 4, 5, 8, 9, 15, 16}) { // blocks of 4
    bench b(device());
    const auto prompt = random_prompt(random, static_cast<std::size_t>(length));
    EXPECT_EQ(serve(b, request(1, prompt, 3)), 0);
    const auto before = b.rows;
    EXPECT_EQ(serve(b, request(2, prompt, 3)), (length - 1) / 4 * 4) << length; // a full hit computes its last block
    EXPECT_LT(b.rows - before, 4 + 3);
  }
}

TEST(PrefixCache, APrefixThatEndsInsideABlockIsSharedUpToIt) {
  std::mt19937 random(2);
  bench b(device());
  const auto prefix = random_prompt(random, 10);
  serve(b, request(1, joined(prefix, {1, 1, 1}), 3));
  EXPECT_EQ(serve(b, request(2, joined(prefix, {2, 2, 2, 2}), 3)), 8);
}

TEST(PrefixCache, GeneratedBlocksServeTheNextTurn) {
  std::mt19937 random(3);
  bench b(device());
  const auto prompt = random_prompt(random, 6);
  serve(b, request(1, prompt, 20));
  // 25 rows were computed: the last output never was one.
  EXPECT_EQ(serve(b, request(2, joined(joined(prompt, b.tokens[{1, 0}]), {9, 9, 9}), 5)), 24);
}

TEST(PrefixCache, AConstantHashStillGivesTheRightTokens) {
  std::mt19937 random(4);
  bench b(config(device(), true, [](auto, auto, auto) { return std::uint64_t{7}; }));
  const auto prompt = random_prompt(random, 16);
  auto swapped = prompt;
  std::rotate(swapped.begin(), swapped.begin() + 4, swapped.end()); // the same blocks in another order
  EXPECT_EQ(serve(b, request(1, prompt, 9)), 0);
  EXPECT_EQ(serve(b, request(2, swapped, 9)), 0);
  EXPECT_EQ(serve(b, request(3, prompt, 9)), 12);
  EXPECT_EQ(serve(b, request(4, swapped, 9)), 12);
}

TEST(PrefixCache, SaltsAreWorldsApart) {
  bench b(device());
  const std::vector<token_id> prompt(13, 5);
  const auto salted = [&](std::uint64_t id, std::string salt) {
    auto r = request(id, prompt, 2);
    r.cache_salt = std::move(salt);
    return r;
  };
  EXPECT_EQ(serve(b, salted(1, "a")), 0);
  EXPECT_EQ(serve(b, salted(2, "b")), 0);
  EXPECT_EQ(serve(b, salted(3, "")), 0);
  EXPECT_EQ(serve(b, salted(4, "a")), 12);
}

TEST(PrefixCache, OffMeansOff) {
  bench b(config(device(), false));
  const std::vector<token_id> prompt(13, 5);
  EXPECT_EQ(serve(b, request(1, prompt, 2)), 0);
  EXPECT_EQ(b.sched.stats().blocks_cached, 0);
  EXPECT_EQ(serve(b, request(2, prompt, 2)), 0);
}

TEST(PrefixCache, ALostDeviceHasForgottenEverything) {
  bench b(device());
  const std::vector<token_id> prompt(13, 5);
  serve(b, request(1, prompt, 2));
  EXPECT_GT(b.sched.stats().blocks_cached, 0);
  b.lose(loss_cause::killed);
  EXPECT_EQ(b.sched.stats().blocks_free, b.sched.stats().blocks_total);
  EXPECT_EQ(serve(b, request(2, prompt, 2)), 0);
}

// Rows that are planned or even computed do not count before their result was applied.
TEST(PrefixCache, ABlockWithoutAnAppliedResultIsNotFound) {
  bench b(device());
  const std::vector<token_id> prompt(13, 5);
  ASSERT_FALSE(b.sched.add(request(1, prompt, 2), 0));
  ASSERT_TRUE(b.sched.schedule(1));
  b.sched.remove({1, 0}); // its chunk is in flight
  EXPECT_EQ(b.sched.stats().blocks_cached, 0);
  EXPECT_EQ(b.sched.stats().blocks_free, b.sched.stats().blocks_total);
}

TEST(PrefixCache, WithPenaltiesNoRowIsSkipped) {
  for (float sampling_params::*penalty :
       {&sampling_params::repetition_penalty, &sampling_params::presence_penalty, &sampling_params::frequency_penalty}) {
    bench b(device());
    const std::vector<token_id> prompt(13, 5);
    serve(b, request(1, prompt, 2));
    auto r = request(2, prompt, 2);
    r.sampling.*penalty = 0.5F;
    EXPECT_EQ(serve(b, r), 0);
    EXPECT_EQ(serve(b, request(3, prompt, 2)), 12);
  }
}

TEST(PrefixCache, PromptScoresAreTheSameEachTimeInAnyOrderAndChunkSize) {
  std::mt19937 random(5);
  const auto tokens = random_prompt(random, 17);
  std::map<std::size_t, std::vector<scored_token>> first;
  for (const std::int32_t budget : {8, 9, 16, 64}) {
    bench b(device(64, 8, 8, budget));
    std::uint64_t id = 0;
    std::vector<std::size_t> lengths = {7, 8, 9, 17, 7, 8, 9, 17}; // one less than a block, a block, one more, two and one
    if (budget == 9) std::reverse(lengths.begin(), lengths.end());
    for (const std::size_t length : lengths) {
      auto r = request(++id, std::vector<token_id>(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(length)), 2);
      r.prompt_logprobs = 0;
      EXPECT_EQ(serve(b, r), 0);
      const auto& scores = b.scores[{id, 0}];
      ASSERT_EQ(scores.size(), length - 1);
      for (std::size_t i = 0; i < scores.size(); ++i) EXPECT_EQ(scores[i].token, tokens[i + 1]);
      EXPECT_EQ(scores, first.try_emplace(length, scores).first->second) << length << " tokens, budget " << budget;
    }
  }
}

TEST(PrefixCache, EqualPromptsAtTheSameTimeEndUpWithOneSetOfBlocks) {
  bench b(device(64, 4, 8, 64));
  const std::vector<token_id> prompt(21, 5);
  for (std::uint64_t id = 1; id <= 4; ++id) ASSERT_FALSE(b.sched.add(request(id, prompt, 12), 0));
  b.turn();
  b.turn();
  EXPECT_LE(b.sched.stats().blocks_used, 5 + 4 * 2); // five full ones are shared
  b.run();
  for (std::uint64_t id = 1; id <= 4; ++id) EXPECT_EQ((b.tokens[{id, 0}]), reference(prompt, 12));
}

TEST(PrefixCache, CachedBlocksGoBeforeAnybodyIsPreempted) {
  std::mt19937 random(6);
  bench b(device(16, 4, 8, 16, 64));
  for (std::uint64_t id = 1; id <= 4; ++id) serve(b, request(id, random_prompt(random, 13), 2));
  EXPECT_GT(b.sched.stats().blocks_cached, 8);
  serve(b, request(9, random_prompt(random, 20), 40)); // needs 15 of the 16 blocks
  EXPECT_EQ(b.sched.stats().preemptions, 0U);
}

TEST(PrefixCache, ARefillAfterPreemptionFindsWhatIsLeftOfItsBlocks) {
  const auto run = [](bool caching) {
    bench b(config(device(16, 4, 8, 16, 64), caching));
    const std::vector<token_id> longer(20, 8); // the second: when the first takes over its last blocks, its first ones are left
    EXPECT_FALSE(b.sched.add(request(1, {1, 2, 3}, 34), 0));
    EXPECT_FALSE(b.sched.add(request(2, longer, 25), 0));
    b.run();
    EXPECT_EQ(b.sched.stats().preemptions, 1U);
    EXPECT_EQ((b.tokens[{1, 0}]), reference({1, 2, 3}, 34));
    EXPECT_EQ((b.tokens[{2, 0}]), reference(longer, 25));
    return b.rows;
  };
  EXPECT_LE(run(true) + 20, run(false)); // five blocks at least
}

TEST(PrefixCache, AbortInEveryPhaseLeavesNothingBehind) {
  for (const std::int32_t block_size : {1, 16}) {
    for (int turns = 0; turns < 8; ++turns) {
      bench b(device(400, block_size, 4, 4, 300));
      ASSERT_FALSE(b.sched.add(request(1, {1, 2, 3, 4, 5, 6, 7, 8, 9}, 200), 0)); // three chunks
      for (int i = 0; i < turns; ++i) b.turn();
      EXPECT_TRUE(b.sched.remove({1, 0}));
      b.run();
      serve(b, request(2, {1, 2, 3, 4, 5, 6, 7, 8, 9}, 200));
    }
  }
}

} // namespace
} // namespace troupe
