#include "scheduler/scheduler.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/scheduler/scheduler_testing.hpp"

namespace troupe {
namespace {

using namespace test;

TEST(Scheduler, OneSequenceMatchesTheReference) {
  bench b(device());
  ASSERT_FALSE(b.sched.add(request(1, {5, 6, 7}, 20), 0));
  b.run();
  EXPECT_EQ((b.tokens[{1, 0}]), reference({5, 6, 7}, 20));
  EXPECT_EQ((b.ends[{1, 0}].finish), finish_reason::length);
  EXPECT_EQ((b.ends[{1, 0}].output_tokens), 20);
}

TEST(Scheduler, PlansOneStepAheadAndNotTwo) {
  bench b(device());
  ASSERT_FALSE(b.sched.add(request(1, {1, 2}, 10), 0));
  auto first = b.sched.schedule(1);
  auto second = b.sched.schedule(2);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->items[0].kind, work_kind::prefill);
  EXPECT_EQ(second->items[0].kind, work_kind::decode);
  EXPECT_EQ(second->items[0].first_position, 2);
  EXPECT_TRUE(second->tokens.empty()); // the device holds the token that is not known here yet
  EXPECT_FALSE(b.sched.schedule(3));
}

TEST(Scheduler, NeverComputesBeyondTheTokenLimit) {
  bench b(device());
  ASSERT_FALSE(b.sched.add(request(1, {1, 2}, 1), 0));
  ASSERT_TRUE(b.sched.schedule(1));
  EXPECT_FALSE(b.sched.schedule(2)); // its only sample is in flight
}

TEST(Scheduler, StopTokenEndsAndIsCountedButNotPassedOn) {
  const auto expected = reference({3, 1, 4}, 30);
  auto r = request(1, {3, 1, 4}, 30);
  r.stop.stop_token_ids = {expected[5]};
  const auto first = std::find(expected.begin(), expected.end(), expected[5]) - expected.begin();
  bench b(device());
  ASSERT_FALSE(b.sched.add(r, 0));
  b.run();
  EXPECT_EQ((b.tokens[{1, 0}]), std::vector<token_id>(expected.begin(), expected.begin() + first));
  EXPECT_EQ((b.ends[{1, 0}].finish), finish_reason::stop);
  EXPECT_EQ((b.ends[{1, 0}].output_tokens), first + 1);
}

TEST(Scheduler, StopTokenBelowMinTokensDoesNotEnd) {
  const auto expected = reference({3, 1, 4}, 30);
  auto r = request(1, {3, 1, 4}, 30);
  r.stop.stop_token_ids = {expected[2]};
  r.stop.min_tokens = 10;
  bench b(device());
  ASSERT_FALSE(b.sched.add(r, 0));
  b.run();
  EXPECT_GE((b.ends[{1, 0}].output_tokens), 10);
}

TEST(Scheduler, PromptOnlyEndsWithNoToken) {
  bench b(device());
  ASSERT_FALSE(b.sched.add(request(1, std::vector<token_id>(50, 1), 0), 0)); // four chunks
  b.run();
  EXPECT_TRUE((b.tokens[{1, 0}].empty()));
  EXPECT_EQ((b.ends[{1, 0}].finish), finish_reason::length);
}

TEST(Scheduler, RefusesAtOnceWhatCanNeverFit) {
  bench b(device(8, 4, 8, 16, 128)); // pool of 32 tokens, context of 128
  auto over_pool = b.sched.add(request(1, std::vector<token_id>(40, 1), 10), 0);
  ASSERT_TRUE(over_pool);
  EXPECT_EQ(over_pool->kind, error_kind::invalid_request);
  auto over_context = b.sched.add(request(2, std::vector<token_id>(128, 1), 10), 0);
  ASSERT_TRUE(over_context);
  for (std::uint64_t id = 3; id < 10; ++id) ASSERT_FALSE(b.sched.add(request(id, {1, 2}, 5), 0));
  b.run();
  EXPECT_EQ(b.ends.size(), 7U);
}

TEST(Scheduler, AFullQueueIsOverloadedAndNamesAWait) {
  bench b(device(), 2, 2);
  ASSERT_FALSE(b.sched.add(request(1, {1}, 5), 0));
  ASSERT_FALSE(b.sched.add(request(2, {1}, 5), 0));
  auto refused = b.sched.add(request(3, {1}, 5), 0);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->kind, error_kind::overloaded);
  EXPECT_TRUE(refused->retry_after_seconds);
  b.run();
}

TEST(Scheduler, ATightPoolPreemptsAndStillGivesTheReferenceTokens) {
  bench b(device(12, 4, 8, 16, 48));
  for (std::uint64_t id = 1; id <= 6; ++id) ASSERT_FALSE(b.sched.add(request(id, {static_cast<token_id>(id), 2, 3}, 30), 0));
  b.run();
  EXPECT_GT(b.sched.stats().preemptions, 0U);
  for (std::uint64_t id = 1; id <= 6; ++id) {
    EXPECT_EQ((b.tokens[{id, 0}]), reference({static_cast<token_id>(id), 2, 3}, 30)) << id;
  }
}

TEST(Scheduler, ALongPromptDoesNotStopDecodes) {
  bench b(device(64, 4, 4, 8, 200));
  ASSERT_FALSE(b.sched.add(request(1, {1}, 100), 0));
  for (int i = 0; i < 5; ++i) b.turn();
  ASSERT_FALSE(b.sched.add(request(2, std::vector<token_id>(90, 1), 5), 0));
  for (int i = 0; i < 10; ++i) {
    const std::size_t before = b.tokens[{1, 0}].size();
    b.turn();
    EXPECT_EQ((b.tokens[{1, 0}].size()), before + 1);
  }
  b.run();
  EXPECT_EQ((b.tokens[{2, 0}]), reference(std::vector<token_id>(90, 1), 5));
}

TEST(Scheduler, StaleRepeatedAndForeignResultsChangeNothing) {
  bench b(device());
  ASSERT_FALSE(b.sched.add(request(1, {1, 2}, 10), 0));
  auto result = b.dev.run(*b.sched.schedule(1));
  step_result older = result;
  older.epoch = 0;
  EXPECT_TRUE(b.sched.apply(older, 2).empty());
  step_result later = result;
  later.step = 9;
  EXPECT_TRUE(b.sched.apply(later, 2).empty());
  b.absorb(b.sched.apply(result, 3));
  EXPECT_TRUE(b.sched.apply(result, 4).empty());
  b.run();
  EXPECT_EQ((b.tokens[{1, 0}]), reference({1, 2}, 10));
}

TEST(Scheduler, RemovalAtEveryStageGivesAllBlocksBack) {
  std::mt19937 random(7);
  for (int round = 0; round < 50; ++round) {
    bench b(device(16, 4, 4, 8, 64), 1 + round % 2);
    for (std::uint64_t id = 1; id <= 8; ++id) ASSERT_FALSE(b.sched.add(request(id, std::vector<token_id>(random() % 20 + 1, 3), 20), 0));
    for (std::uint64_t id = 1; id <= 8; ++id) {
      for (unsigned i = random() % 6; i > 0; --i) b.turn();
      if (id % 2 == 0) b.sched.remove({id, 0});
      EXPECT_FALSE(b.sched.remove({id + 100, 0}));
    }
    b.run();
    for (std::uint64_t id = 1; id <= 8; id += 2) EXPECT_TRUE((b.ends.contains({id, 0})));
  }
}

TEST(Scheduler, ALostDeviceCostsNoTokenAndRepeatsNone) {
  std::mt19937 random(11);
  for (int round = 0; round < 50; ++round) {
    bench b(device(20, 4, 4, 8, 64));
    for (std::uint64_t id = 1; id <= 6; ++id) ASSERT_FALSE(b.sched.add(request(id, {static_cast<token_id>(id), 1}, 25), 0));
    for (int loss = 0; loss < 4; ++loss) {
      for (unsigned i = random() % 12 + 8; i > 0; --i) b.turn();
      b.lose(loss_cause::killed);
    }
    b.run();
    for (std::uint64_t id = 1; id <= 6; ++id) EXPECT_EQ((b.tokens[{id, 0}]), reference({static_cast<token_id>(id), 1}, 25));
  }
}

// The device fails whenever `poison` is in a plan.
void run_with_poison(bench& b, std::uint64_t poison, int max_losses) {
  int losses = 0;
  for (int i = 0; i < 10000; ++i) {
    std::optional<step_plan> plan;
    bool poisoned = false;
    while ((plan = b.sched.schedule(++b.now))) {
      step_result r = b.dev.run(*plan);
      b.results.push_back(r);
      for (const work_item& item : plan->items) {
        if (item.kind == work_kind::prefill && !plan->tokens.empty() &&
            std::find(plan->tokens.begin(), plan->tokens.end(), static_cast<token_id>(poison)) != plan->tokens.end()) {
          poisoned = true;
        }
      }
    }
    if (poisoned) {
      ASSERT_LE(++losses, max_losses);
      b.lose(loss_cause::fault);
      continue;
    }
    if (b.results.empty()) return;
    b.absorb(b.sched.apply(b.results.front(), ++b.now));
    b.results.pop_front();
  }
  FAIL() << "no end";
}

TEST(Scheduler, APoisonRequestIsQuarantinedAlone) {
  bench b(device(64, 4, 8, 64, 64));
  for (std::uint64_t id = 1; id <= 6; ++id) {
    ASSERT_FALSE(b.sched.add(request(id, {id == 4 ? 96 : static_cast<token_id>(id), 1}, 5), 0)); // all prefills share one plan
  }
  run_with_poison(b, 96, 2);
  EXPECT_EQ((b.ends[{4, 0}].finish), finish_reason::failed);
  for (std::uint64_t id : {1, 2, 3, 5, 6}) EXPECT_EQ((b.ends[{id, 0}].finish), finish_reason::length) << id;
}

// A client that tries again brings the poison back while the bystanders of the last fault are being replayed.
TEST(Scheduler, APoisonRequestThatComesBackTakesNobodyWithIt) {
  bench b(device(64, 4, 8, 64, 64));
  for (std::uint64_t id = 1; id <= 3; ++id) ASSERT_FALSE(b.sched.add(request(id, {static_cast<token_id>(id), 1}, 30), 0));
  for (std::uint64_t again = 10; again < 13; ++again) {
    for (int i = 0; i < 3; ++i) b.turn();
    ASSERT_FALSE(b.sched.add(request(again, {96, 1}, 5), 0));
    for (int losses = 0; !b.ends.contains({again, 0});) {
      bool poisoned = false;
      while (auto plan = b.sched.schedule(++b.now)) {
        b.results.push_back(b.dev.run(*plan));
        poisoned = poisoned || std::find(plan->tokens.begin(), plan->tokens.end(), 96) != plan->tokens.end();
      }
      if (poisoned) {
        ASSERT_LE(++losses, 2);
        b.lose(loss_cause::fault);
      } else {
        ASSERT_TRUE(b.turn());
      }
    }
    EXPECT_EQ((b.ends[{again, 0}].finish), finish_reason::failed);
  }
  b.run();
  for (std::uint64_t id = 1; id <= 3; ++id) EXPECT_EQ((b.tokens[{id, 0}]), reference({static_cast<token_id>(id), 1}, 30)) << id;
}

TEST(Scheduler, KillsFromOutsideBlameNobodyUntilTheEighthInARow) {
  bench b(device());
  ASSERT_FALSE(b.sched.add(request(1, {1, 2}, 10), 0));
  for (int i = 0; i < 7; ++i) {
    ASSERT_TRUE(b.sched.schedule(1));
    b.lose(loss_cause::killed);
    EXPECT_TRUE(b.ends.empty());
  }
  ASSERT_TRUE(b.sched.schedule(1));
  b.lose(loss_cause::killed);
  EXPECT_EQ((b.ends[{1, 0}].finish), finish_reason::failed);
}

TEST(Scheduler, ANumericFaultEndsThatSequenceAlone) {
  bench b(device());
  ASSERT_FALSE(b.sched.add(request(1, {1, 2}, 10), 0));
  ASSERT_FALSE(b.sched.add(request(2, {2, 2}, 10), 0));
  auto result = b.dev.run(*b.sched.schedule(1));
  result.outputs[0].numeric_fault = true;
  result.outputs[0].tokens.clear();
  b.absorb(b.sched.apply(result, 2));
  b.run();
  EXPECT_EQ((b.ends[{1, 0}].finish), finish_reason::failed);
  EXPECT_EQ((b.tokens[{2, 0}]), reference({2, 2}, 10));
}

TEST(Scheduler, LowerPriorityNumbersGoFirst) {
  bench b(device(64, 4, 1, 16, 64));
  for (std::uint64_t id = 1; id <= 3; ++id) {
    auto r = request(id, {1}, 3);
    r.priority = 3 - static_cast<std::int32_t>(id);
    ASSERT_FALSE(b.sched.add(r, 0));
  }
  b.run();
  EXPECT_LT((b.ends[{3, 0}].times.finished_ns), (b.ends[{2, 0}].times.finished_ns));
  EXPECT_LT((b.ends[{2, 0}].times.finished_ns), (b.ends[{1, 0}].times.finished_ns));
}

TEST(Scheduler, LimitsThatCannotWorkTogetherAreRefusedWithTheNumbers) {
  EXPECT_THROW(scheduler({device(64, 4, 32, 16), 10, 2}), std::invalid_argument);
  EXPECT_THROW(scheduler({device(0), 10, 2}), std::invalid_argument);
}

} // namespace
} // namespace troupe
