// Bounds on waiting, counted in steps.
#include <gtest/gtest.h>

#include <deque>
#include <random>
#include <set>

#include "tests/scheduler/scheduler_testing.hpp"

namespace troupe {
namespace {

using namespace test;

// Whoever speaks speaks in every step, whatever arrives.
TEST(Fairness, ASequenceThatDecodesGetsATokenInEveryStep) {
  std::mt19937 random(1);
  bench b(device(4000, 4, 8, 8, 400)); // no more budget than slots
  for (std::uint64_t id = 1; id <= 4; ++id) ASSERT_FALSE(b.sched.add(request(id, {static_cast<token_id>(id)}, 300), 0));
  b.turn();
  b.turn();
  for (std::uint64_t step = 0; step < 200; ++step) {
    if (step % 3 == 0) {
      ASSERT_FALSE(b.sched.add(request(100 + step, std::vector<token_id>(random() % 90 + 1, 1), 20), 0));
    }
    std::map<sequence_id, std::size_t> before;
    for (std::uint64_t id = 1; id <= 4; ++id) before[{id, 0}] = b.tokens[{id, 0}].size();
    b.turn();
    for (const auto& [id, count] : before) ASSERT_EQ(b.tokens[id].size(), count + 1) << "step " << step;
  }
}

// In a pipeline everybody's turn comes at least once in one step more than plans are in flight.
TEST(Fairness, InAPipelineASequenceThatDecodesStandsAsideForNoMoreThanThePlansInFlight) {
  for (const auto& [stages, plans] : {std::pair{2, 2}, {2, 3}, {3, 3}, {3, 5}, {4, 4}}) {
    std::mt19937 random(1);
    scheduler_config config{device(4000, 4, 8, 8, 400), 1000, plans};
    config.stages = stages;
    bench b(config);
    for (std::uint64_t id = 1; id <= 5; ++id) ASSERT_FALSE(b.sched.add(request(id, {static_cast<token_id>(id)}, 300), 0));
    std::map<sequence_id, std::uint64_t> spoke;
    for (std::uint64_t step = 0; step < 300; ++step) {
      if (step % 3 == 0) {
        ASSERT_FALSE(b.sched.add(request(100 + step, std::vector<token_id>(random() % 90 + 1, 1), 20), 0));
      }
      std::map<sequence_id, std::size_t> before;
      for (std::uint64_t id = 1; id <= 5; ++id) before[{id, 0}] = b.tokens[{id, 0}].size();
      b.turn();
      for (const auto& [id, count] : before) {
        if (b.tokens[id].size() > count) spoke[id] = step;
        ASSERT_LE(step - spoke[id], static_cast<std::uint64_t>(plans) + 1) << stages << " stages, sequence " << id.request;
      }
    }
  }
}

// Each of three stages works on its third of the sequences.
TEST(Fairness, PlansInAPipelineShareTheDecodesOut) {
  scheduler_config config{device(4000, 4, 9, 64, 400), 1000, 3};
  config.stages = 3;
  bench b(config);
  for (std::uint64_t id = 1; id <= 9; ++id) ASSERT_FALSE(b.sched.add(request(id, {static_cast<token_id>(id)}, 40), 0));
  b.turn(); // all prompts in one plan
  for (int step = 0; step < 60; ++step) {
    std::set<slot_id> held;
    for (const step_result& result : b.results) {
      for (const slot_output& out : result.outputs) EXPECT_TRUE(held.insert(out.slot).second);
      EXPECT_EQ(result.outputs.size(), step == 0 ? 9U : 3U) << "step " << step;
    }
    b.turn();
  }
}

// A prompt of L tokens that is first in rank among the prefills has its first token within ceil(L / (B - S + 1)) steps of its
// scheduling (budget B, S slots), plus the plans that are in flight: all other slots may decode, one token each.
TEST(Fairness, ALongPromptIsThroughWithinItsBoundBehindAnyNumberOfShortOnes) {
  for (const auto& [budget, slots] : {std::pair{8, 8}, {16, 8}, {64, 16}, {100, 4}}) {
    constexpr std::int32_t length = 333;
    bench b(device(4000, 4, slots, budget, 400));
    std::uint64_t id = 100;
    for (std::int32_t i = 0; i < slots - 1; ++i) ASSERT_FALSE(b.sched.add(request(++id, {1, 2}, 390), 0));
    for (int i = 0; i < 4; ++i) b.turn(); // all other slots speak
    ASSERT_FALSE(b.sched.add(request(++id, std::vector<token_id>(length, 3), 2), 0));
    const sequence_id late{id, 0};
    int steps = 0;
    while (b.tokens[late].empty()) {
      ASSERT_FALSE(b.sched.add(request(++id, {4, 5, 6}, 1), 0)); // short ones keep coming
      b.turn();
      ++steps;
    }
    EXPECT_LE(steps, (length + budget - slots) / (budget - slots + 1) + 2) << "budget " << budget << ", slots " << slots;
  }
}

// A prompt that needs most of the pool is not overtaken for ever by prompts that need little of it: everything that was admitted before
// it ends, nothing is admitted after it, so that it runs within the steps that those need.
TEST(Fairness, AWideRequestIsScheduledWhenThoseBeforeItHaveEnded) {
  constexpr std::int32_t outputs = 30;
  bench b(device(32, 4, 8, 64, 128));
  std::uint64_t id = 0;
  for (int i = 0; i < 6; ++i) ASSERT_FALSE(b.sched.add(request(++id, {1, 2}, outputs), 0));
  b.turn();
  ASSERT_FALSE(b.sched.add(request(++id, std::vector<token_id>(110, 3), 2), 0)); // 28 of the 32 blocks
  const sequence_id wide{id, 0};
  int steps = 0;
  while (b.tokens[wide].empty()) {
    ASSERT_FALSE(b.sched.add(request(++id, {4, 5, 6}, outputs), 0));
    b.turn();
    ++steps;
  }
  EXPECT_LE(steps, outputs + 2 + 2); // those before it, two chunks, two plans in flight
}

} // namespace
} // namespace troupe
