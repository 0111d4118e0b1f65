#include "apps/bench/step_stopwatch.hpp"

#include <gtest/gtest.h>

#include <stdexcept>

#include "apps/bench/recording_executor.hpp"
#include "models/slot_table.hpp"

namespace troupe::bench {
namespace {

constexpr executor_info kLimits{16, 40, 4, 64, 128, 100};

// Keeps the step protocol as every executor does, and computes nothing.
class strict_device final : public step_executor {
 public:
  executor_info info() const override { return kLimits; }
  void submit(const step_plan& plan, deliver_fn deliver) override {
    plans.push_back(plan);
    if (const auto breach = slots_.take(plan)) return deliver(step_failure{*breach});
    for (const work_item& item : plan.items) { // as an executor does behind a step
      slots_[item.slot].position = item.first_position + item.token_count;
      slots_[item.slot].last_token = 1;
    }
    deliver(step_result{plan.epoch, plan.step, {}, {}});
  }

  std::vector<step_plan> plans;

 private:
  slot_table slots_{kLimits};
};

TEST(StepStopwatch, WritesEveryBlockBeforeAnythingIsTimed) {
  strict_device device;
  const step_stopwatch watch(device);
  ASSERT_EQ(device.plans.size(), 2U);
  EXPECT_EQ(device.plans[1].copies.size(), 39U);
}

TEST(StepStopwatch, TimesStepsOfTheShapeThatWasAskedFor) {
  strict_device device;
  step_stopwatch watch(device);
  const timed_shape shapes[] = {{4, 60, 0, 0}, {0, 1, 64, 50}, {3, 1, 30, 0}, {0, 1, 1, 0}, {1, 126, 0, 0}};
  for (const timed_shape& shape : shapes) {
    EXPECT_GT(watch.once(shape), 0);
    const step_plan& timed = device.plans.back();
    std::int32_t rows = 0, tokens = 0;
    for (const work_item& item : timed.items) {
      if (item.kind == work_kind::decode) {
        EXPECT_EQ(item.first_position, shape.context + 1); // the second in a row
        rows += item.token_count;
      } else {
        EXPECT_EQ(item.first_position, shape.prefix);
        tokens += item.token_count;
      }
    }
    EXPECT_EQ(rows, shape.rows);
    EXPECT_EQ(tokens, shape.tokens);
  }
}

TEST(StepStopwatch, AStepThatFailsIsAnError) {
  strict_device device;
  step_stopwatch watch(device);
  EXPECT_THROW(watch.once({4, 200, 0, 0}), std::runtime_error); // beyond the context limit
}

TEST(RecordingExecutor, NotesWhatEachStepHeldBeforeItsResultGoesOut) {
  auto inner = std::make_unique<strict_device>();
  auto log = std::make_shared<step_log>();
  recording_executor recording(std::move(inner), log);
  EXPECT_EQ(recording.info(), kLimits);
  step_stopwatch watch(recording);
  log->take();
  watch.once({2, 10, 30, 0});
  const auto steps = log->take();
  ASSERT_EQ(steps.size(), 3U); // the slots' opening, a decode step, both kinds together
  EXPECT_EQ(steps[0].prefill_tokens, 2);
  EXPECT_EQ(steps[1].decode_rows, 2);
  EXPECT_EQ(steps[1].decode_positions, 20);
  EXPECT_EQ(steps[2].decode_rows, 2);
  EXPECT_EQ(steps[2].prefill_tokens, 30);
  EXPECT_LE(steps[0].begin_ns, steps[0].end_ns);
  EXPECT_LE(steps[0].end_ns, steps[1].begin_ns);
  EXPECT_TRUE(log->take().empty());
}

} // namespace
} // namespace troupe::bench
