#include <gtest/gtest.h>

#include "scheduler/step_cost.hpp"
#include "tests/scheduler/scheduler_testing.hpp"

namespace troupe {
namespace {

using namespace test;

constexpr std::uint64_t kMs = 1'000'000;

// Steps take 2 ms and 10 us for each token.
std::uint64_t step_ns(std::int64_t tokens) { return 2 * kMs + static_cast<std::uint64_t>(tokens) * 10'000; }

struct timed_bench : bench {
  explicit timed_bench(const scheduler_config& c) : bench(c) {}

  void timed_run() {
    while (auto plan = sched.schedule(now)) {
      std::int64_t computed = 0;
      for (const work_item& item : plan->items) computed += item.token_count;
      const step_result result = dev.run(*plan);
      now += step_ns(computed);
      absorb(sched.apply(result, now));
    }
  }
  std::optional<error> add(std::uint64_t id, std::size_t prompt, std::optional<std::uint64_t> queue_deadline = {}) {
    auto r = request(id, std::vector<token_id>(prompt, static_cast<token_id>(id)), 5);
    r.queue_deadline_ns = queue_deadline;
    return sched.add(r, now);
  }
};

scheduler_config config(std::optional<std::uint64_t> bound, std::int32_t seqs = 8) {
  scheduler_config c;
  c.device = device(4096, 4, seqs, 100, 4000);
  c.plans_in_flight = 1;
  c.max_predicted_ttft_ns = bound;
  return c;
}

TEST(StepCost, LearnsTheTimeOfAStepAndOfAToken) {
  step_cost cost;
  EXPECT_FALSE(cost.predict_ns(1, 100));
  for (std::int64_t tokens : {1, 100, 7, 50}) cost.observe(tokens, step_ns(tokens));
  EXPECT_NEAR(static_cast<double>(*cost.predict_ns(250, 100)), static_cast<double>(2 * step_ns(100) + step_ns(50)), 1000);
  EXPECT_EQ(cost.predict_ns(0, 100), 0U);
}

TEST(StepCost, StepsOfOneSizeTellNothingAboutTokens) {
  step_cost cost;
  for (int i = 0; i < 10; ++i) cost.observe(1, step_ns(1));
  EXPECT_NEAR(static_cast<double>(*cost.predict_ns(1000, 100)), static_cast<double>(10 * step_ns(1)), 1000);
}

TEST(StepCost, NoNoiseMakesAPartOfItNegative) {
  step_cost cost; // larger steps were faster
  cost.observe(1, 5 * kMs);
  cost.observe(100, 1 * kMs);
  EXPECT_LE(*cost.predict_ns(100, 100), *cost.predict_ns(200, 100));
  step_cost steep; // a line through these is below 0 at 0
  steep.observe(50, 1 * kMs);
  steep.observe(100, 90 * kMs);
  EXPECT_LE(*steep.predict_ns(1, 100), *steep.predict_ns(100, 100));
}

TEST(PredictedWait, WhatWouldComeTooLateIsRefusedWithAWait) {
  timed_bench b(config(50 * kMs));                                         // a step of 100 tokens takes 3 ms
  for (std::uint64_t id = 1; id <= 4; ++id) ASSERT_FALSE(b.add(id, 2000)); // nothing is known yet
  b.timed_run();
  ASSERT_FALSE(b.add(11, 1000)); // 30 ms
  const auto refused = b.add(12, 1000);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->kind, error_kind::overloaded);
  EXPECT_EQ(refused->retry_after_seconds, 1U);
  ASSERT_FALSE(b.add(13, 500)); // a shorter one still is in time
  auto urgent = request(14, std::vector<token_id>(1000, 3), 5);
  urgent.priority = -1; // goes before those that wait
  EXPECT_FALSE(b.sched.add(urgent, b.now));
  b.timed_run();
  EXPECT_FALSE(b.ends.contains({12, 0}));
  const sequence_times& times = b.ends[{13, 0}].times;
  EXPECT_NEAR(static_cast<double>(times.first_token_ns - times.scheduled_ns), 15.0 * kMs, 10.0 * kMs);
}

TEST(PredictedWait, WithoutABoundNothingIsRefused) {
  timed_bench b(config({}));
  for (std::uint64_t id = 1; id <= 40; ++id) {
    ASSERT_FALSE(b.add(id, 3000));
    if (id == 5) b.timed_run();
  }
}

TEST(PredictedWait, AQueueDeadlineThatWouldPassAnywayIsRefusedAtOnce) {
  timed_bench b(config({}));
  ASSERT_FALSE(b.add(1, 2000));
  b.timed_run();
  ASSERT_FALSE(b.add(2, 3000)); // 90 ms of prefill
  const auto refused = b.add(3, 10, b.now + 60 * kMs);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->kind, error_kind::overloaded);
  EXPECT_EQ(refused->param, "queue_timeout_ms");
  EXPECT_FALSE(b.add(4, 10, b.now + 120 * kMs));
}

TEST(PredictedWait, SlotsThatAreTakenCount) {
  timed_bench b(config({}, 1));
  ASSERT_FALSE(b.add(1, 4)); // five steps of about 2 ms
  b.timed_run();
  for (std::uint64_t id = 2; id <= 11; ++id) ASSERT_FALSE(b.add(id, 4)); // ten stays of 10 ms before the next
  EXPECT_TRUE(b.add(12, 4, b.now + 80 * kMs));
  EXPECT_FALSE(b.add(13, 4, b.now + 130 * kMs));
}

} // namespace
} // namespace troupe
