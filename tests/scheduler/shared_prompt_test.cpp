#include <gtest/gtest.h>

#include "tests/scheduler/scheduler_testing.hpp"

namespace troupe {
namespace {

using namespace test;

// n choices of one prompt, drawn under different seeds.
std::vector<sequence_request> choices(std::uint64_t id, const std::vector<token_id>& prompt, std::int32_t n, std::int32_t max_tokens) {
  std::vector<sequence_request> all;
  for (std::int32_t i = 0; i < n; ++i) {
    auto r = request(id, prompt, max_tokens);
    r.id.index = i;
    r.sampling.seed = static_cast<std::uint64_t>(i);
    if (i > 0) r.same_prompt_as = 0;
    all.push_back(std::move(r));
  }
  return all;
}

void add(bench& b, const std::vector<sequence_request>& all) {
  for (const sequence_request& r : all) ASSERT_FALSE(b.sched.add(r, 0));
}

void expect_references(bench& b, const std::vector<sequence_request>& all) {
  for (const sequence_request& r : all) {
    EXPECT_EQ(b.tokens[r.id], reference(r.prompt, r.stop.max_tokens, r.sampling.seed)) << r.id.request << "." << r.id.index;
  }
}

bench with(bool caching, executor_info info) {
  scheduler_config config;
  config.device = info;
  config.prefix_caching = caching;
  return bench(config);
}

TEST(SharedPrompt, OneChoiceComputesThePromptAndTheOthersItsLastToken) {
  for (const bool caching : {true, false}) {
    for (const std::int32_t length : {1, 3, 4, 5, 12, 13, 40}) { // blocks of 4, chunks of 16
      bench b = with(caching, device());
      const auto all = choices(1, std::vector<token_id>(static_cast<std::size_t>(length), 7), 4, 10);
      add(b, all);
      b.run();
      expect_references(b, all);
      EXPECT_EQ(b.rows, length + 3 + 4 * 9) << length;
      EXPECT_EQ(b.copies, (length - 1) % 4 == 0 ? 0U : 3U) << length;
    }
  }
}

TEST(SharedPrompt, FullBlocksAreHeldOnce) {
  bench b = with(false, device());
  add(b, choices(1, std::vector<token_id>(14, 7), 4, 30));
  for (int i = 0; i < 2; ++i) b.turn();
  EXPECT_EQ(b.sched.stats().running, 4);
  EXPECT_EQ(b.sched.stats().blocks_used, 3 + 4);
  b.run();
}

TEST(SharedPrompt, WithPenaltiesEachChoiceComputesAllRows) {
  bench b = with(true, device());
  auto all = choices(1, std::vector<token_id>(14, 7), 3, 5);
  for (auto& r : all) r.sampling.presence_penalty = 1;
  add(b, all);
  b.run();
  expect_references(b, all);
  EXPECT_EQ(b.rows, 3 * (14 + 4));
}

TEST(SharedPrompt, TheFirstMayGoAtAnyMoment) {
  for (const bool caching : {true, false}) {
    for (int turns = 0; turns < 6; ++turns) {
      bench b = with(caching, device(64, 4, 8, 16));
      auto all = choices(1, std::vector<token_id>(40, 7), 3, 10); // three chunks
      add(b, all);
      for (int i = 0; i < turns; ++i) b.turn();
      ASSERT_TRUE(b.sched.remove({1, 0}));
      b.run();
      all.erase(all.begin());
      expect_references(b, all);
    }
  }
}

TEST(SharedPrompt, ALostDeviceStartsItOver) {
  for (int turns = 0; turns < 8; ++turns) {
    bench b = with(true, device());
    const auto all = choices(1, std::vector<token_id>(40, 7), 3, 10);
    add(b, all);
    for (int i = 0; i < turns; ++i) b.turn();
    b.lose(loss_cause::killed);
    b.run();
    expect_references(b, all);
  }
}

TEST(SharedPrompt, MoreChoicesThanSlotsAndAPoolThatIsTooSmall) {
  for (const bool caching : {true, false}) {
    bench b = with(caching, device(14, 4, 4, 16, 56));
    const auto all = choices(1, std::vector<token_id>(14, 7), 9, 30);
    add(b, all);
    b.run();
    expect_references(b, all);
    EXPECT_GT(b.sched.stats().preemptions, 0U);
  }
}

TEST(SharedPrompt, AChoiceWithAnotherPromptSharesNothing) {
  bench b = with(true, device());
  auto all = choices(1, std::vector<token_id>(14, 7), 2, 10);
  all[1].prompt[3] = 8;
  add(b, all);
  b.run();
  expect_references(b, all);
  EXPECT_EQ(b.copies, 0U);
}

} // namespace
} // namespace troupe
