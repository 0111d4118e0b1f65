#include "apps/bench/calibration.hpp"

#include <gtest/gtest.h>

#include <stdexcept>

namespace troupe::bench {
namespace {

// 10 us a row and 20 ns a token of context, 7 us a prompt token; a step with both saves 5 us.
double cost_of(const timed_shape& s) {
  const double both = s.rows > 0 && s.tokens > 0 ? 5e3 : 0;
  return s.rows * (10e3 + 20.0 * s.context) + s.tokens * (7e3 + 10.0 * s.prefix) - both;
}

calibration measured(const executor_info& info) {
  calibration c(info);
  for (auto* points : {&c.decode, &c.prefill, &c.mixed}) {
    for (timed_point& p : *points) p.ns = {cost_of(p.shape), cost_of(p.shape) + 1, cost_of(p.shape) - 1, 40 * cost_of(p.shape)};
  }
  return c;
}

TEST(Calibration, TheTableHoldsWhatWasMeasured) {
  const executor_info info{16, 400, 6, 48, 2048, 100};
  const calibration c = measured(info);
  EXPECT_EQ(c.decode_rows, (std::vector<double>{1, 2, 3, 4, 6}));
  EXPECT_EQ(c.prefill_tokens, (std::vector<double>{1, 2, 4, 8, 16, 32, 48}));
  const auto t = c.table();
  EXPECT_EQ(t.limits, info);
  for (const timed_point& p : c.decode) EXPECT_NEAR(t.decode.at(p.shape.rows, p.shape.context), cost_of(p.shape), 1);
  for (const timed_point& p : c.prefill) EXPECT_NEAR(t.prefill.at(p.shape.tokens, p.shape.prefix), cost_of(p.shape), 1);
  EXPECT_NEAR(t.shared_ns, 5e3, 2);
}

TEST(Calibration, AllSlotsCanHaveTheLongestContextAtOnce) {
  for (const executor_info& info : {executor_info{16, 100, 6, 48, 2048, 100}, executor_info{1, 3000, 8, 8, 64, 100}}) {
    for (const timed_point& p : calibration(info).decode) {
      EXPECT_LE(p.shape.context + 2, info.max_model_len);
      EXPECT_LE((p.shape.context + 2 + info.block_size - 1) / info.block_size * p.shape.rows, info.num_blocks);
    }
    for (const timed_point& p : calibration(info).prefill) EXPECT_LE(p.shape.prefix + p.shape.tokens, info.max_model_len);
  }
  EXPECT_THROW(calibration({16, 7, 6, 48, 2048, 100}), std::invalid_argument);
}

TEST(Calibration, OneSlotHasNoStepsWithBoth) {
  const calibration c = measured({16, 400, 1, 48, 2048, 100});
  EXPECT_TRUE(c.mixed.empty());
  EXPECT_EQ(c.table().shared_ns, 0);
  EXPECT_EQ(serving_rows(c.limits), std::vector<std::int32_t>{1});
  EXPECT_EQ(serving_rows({16, 400, 16, 48, 2048, 100}), (std::vector<std::int32_t>{1, 4, 16}));
}

TEST(ServingCost, IsALineOverRows) {
  const auto cost = serving_cost_of({{3e6, 1e6, 2e6}, {{1, {300e3}}, {4, {330e3, 330e3, 330e3, 9e6}}, {16, {450e3}}}});
  EXPECT_DOUBLE_EQ(cost.request_ns, 2e6);
  EXPECT_NEAR(cost.row_ns, 10e3, 1);
  EXPECT_NEAR(cost.step_ns, 290e3, 1);
}

TEST(ServingCost, IsNeverNegative) {
  const auto falling = serving_cost_of({{-5}, {{1, {300}}, {4, {200}}, {16, {100}}}});
  EXPECT_EQ(falling.request_ns, 0);
  EXPECT_EQ(falling.row_ns, 0);
  EXPECT_DOUBLE_EQ(falling.step_ns, 200); // level
  const auto steep = serving_cost_of({{}, {{1, {-500}}, {16, {1600}}}});
  EXPECT_EQ(steep.step_ns, 0);
  EXPECT_NEAR(steep.row_ns, (16 * 1600.0 - 500) / (1 + 16 * 16), 1e-9); // through zero
  const auto below = serving_cost_of({{}, {{1, {-200}}, {16, {-100}}}});
  EXPECT_EQ(below.step_ns, 0);
  EXPECT_EQ(below.row_ns, 0);
  EXPECT_EQ(serving_cost_of({}).step_ns, 0);
}

} // namespace
} // namespace troupe::bench
