#include "simulation/device_table.hpp"

#include <gtest/gtest.h>

namespace troupe::simulation {
namespace {

device_table table() {
  device_table t;
  t.device = "cpu";
  t.model = "small";
  t.limits = {16, 100, 8, 64, 512, 1000};
  t.decode = {{1, 8}, {0, 100, 500}, {10, 20, 60, 80, 160, 480}};
  t.prefill = {{1, 64}, {0, 500}, {10, 60, 640, 3840}};
  t.shared_ns = 5;
  return t;
}

TEST(DeviceTable, IsBilinearBetweenItsPointsAndGoesOnBeyondThem) {
  const device_table t = table();
  EXPECT_DOUBLE_EQ(t.decode.at(1, 0), 10);
  EXPECT_DOUBLE_EQ(t.decode.at(1, 50), 15);
  EXPECT_DOUBLE_EQ(t.decode.at(8, 300), 320);
  EXPECT_DOUBLE_EQ(t.decode.at(4.5, 0), 45);
  EXPECT_DOUBLE_EQ(t.decode.at(1, 900), 100);
  EXPECT_DOUBLE_EQ(t.decode.at(15, 0), 150);
  const cost_line line = t.decode.line(8, 50);
  EXPECT_DOUBLE_EQ(line.base + line.slope * 70, t.decode.at(8, 70));
  EXPECT_DOUBLE_EQ(line.until, 100);
}

TEST(DeviceTable, AMixedStepPaysOnceForWhatIsShared) {
  const device_table t = table();
  EXPECT_DOUBLE_EQ(t.step_ns({1, 0, 0, 0}), 10);
  EXPECT_DOUBLE_EQ(t.step_ns({0, 0, 64, 0}), 640);
  EXPECT_DOUBLE_EQ(t.step_ns({1, 0, 64, 0}), 645);
}

TEST(DeviceTable, ServingAddsToEveryStepAndToEachRow) {
  device_table t = table();
  t.serving = {1000, 7, 2};
  EXPECT_DOUBLE_EQ(t.step_ns({1, 0, 0, 0}), 10 + 7 + 2);
  EXPECT_DOUBLE_EQ(t.step_ns({0, 0, 64, 0}), 640 + 7);
  EXPECT_DOUBLE_EQ(t.step_ns({1, 0, 64, 0}), 645 + 7 + 2);
  for (const double context : {0.0, 50.0, 300.0, 900.0}) {
    const cost_line line = t.decode_line(5, context);
    EXPECT_DOUBLE_EQ(line.base + line.slope * context, t.step_ns({5, context, 0, 0}));
  }
}

TEST(DeviceTable, AFileWithoutServingIsOneThatDidNotMeasureIt) {
  device_table t = table();
  t.serving = {1000, 7, 2};
  std::string text = dump_device_table(t);
  const auto with = parse_device_table(text);
  ASSERT_TRUE(with);
  EXPECT_EQ(with->serving.request_ns, 1000);
  EXPECT_EQ(with->serving.step_ns, 7);
  EXPECT_EQ(with->serving.row_ns, 2);
  text.replace(text.find("\"serving\""), 9, "\"another\"");
  const auto without = parse_device_table(text);
  ASSERT_TRUE(without);
  EXPECT_EQ(without->serving.request_ns, 0);
  EXPECT_EQ(without->step_ns({1, 0, 0, 0}), 10);
}

TEST(DeviceTable, SurvivesItsFile) {
  const device_table t = table();
  const auto again = parse_device_table(dump_device_table(t));
  ASSERT_TRUE(again);
  EXPECT_EQ(again->device, "cpu");
  EXPECT_EQ(again->limits, t.limits);
  EXPECT_EQ(again->decode.ns, t.decode.ns);
  EXPECT_EQ(again->prefill.contexts, t.prefill.contexts);
  EXPECT_EQ(again->shared_ns, 5);
}

TEST(DeviceTable, ABadFileIsRefusedWithTheMembersName) {
  const std::string good = dump_device_table(table());
  const auto without = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    const auto parsed = parse_device_table(text);
    return parsed ? std::string() : parsed.failure().message;
  };
  EXPECT_NE(without("\"rows\"", "\"raws\"").find("rows"), std::string::npos);
  EXPECT_NE(without("[1,8]", "[8,1]").find("decode"), std::string::npos);
  EXPECT_NE(without("[1,8]", "[1,8,9]").find("decode"), std::string::npos);
  EXPECT_NE(without("[0,500]", "[0]").find("prefill"), std::string::npos);
  EXPECT_NE(without("\"num_blocks\":100", "\"num_blocks\":0").find("num_blocks"), std::string::npos);
  EXPECT_NE(without("640", "0").find("prefill"), std::string::npos);
  EXPECT_NE(without("\"shared_ns\":5", "\"shared_ns\":-5").find("shared_ns"), std::string::npos);
  EXPECT_NE(without("\"step_ns\":0", "\"step_ns\":-1").find("step_ns"), std::string::npos);
  EXPECT_NE(without("\"row_ns\"", "\"raw_ns\"").find("row_ns"), std::string::npos);
  EXPECT_NE(without("\"serving\":{", "\"serving\":7,\"x\":{").find("request_ns"), std::string::npos);
  EXPECT_FALSE(parse_device_table("[]"));
}

} // namespace
} // namespace troupe::simulation
