#include "apps/bench/report.hpp"

#include <gtest/gtest.h>

#include "core/json.hpp"

namespace troupe::bench {
namespace {

totals some_totals(const objectives& wanted) {
  request_record good;
  good.first = 0.25;
  good.last = good.ended = 1.25;
  good.output_tokens = 5;
  good.gaps = {0.5, 0.5};
  request_record bad;
  bad.failure = "http 429";
  bad.ended = 0.1;
  return total({good, bad}, wanted);
}

TEST(Report, JsonHasMillisecondsAndReadsBack) {
  const auto wanted = parse_objectives({"ttft:300"}).value;
  const auto text = json::dump(json_report(some_totals(wanted), wanted));
  const auto parsed = json::parse(text);
  ASSERT_TRUE(parsed);
  EXPECT_DOUBLE_EQ(parsed->find("latency_ms")->find("ttft")->find("median")->as_double(), 250);
  EXPECT_DOUBLE_EQ(parsed->find("latency_ms")->find("tpot")->find("p99")->as_double(), 250);
  EXPECT_DOUBLE_EQ(parsed->find("latency_ms")->find("itl")->find("mean")->as_double(), 500);
  EXPECT_EQ(parsed->find("failures")->find("http 429")->as_int(), 1);
  EXPECT_DOUBLE_EQ(parsed->find("goodput")->find("requests_per_second")->as_double(), 0.8);
  EXPECT_EQ(json_report(some_totals({}), {}).find("goodput"), nullptr);
}

TEST(Report, TextNamesFailuresAndLatencies) {
  const auto wanted = parse_objectives({"ttft:300", "e2el:2000"}).value;
  const auto text = text_report(some_totals(wanted), wanted);
  for (const char* part : {"http 429", "1250.00", "TTFT <= 300 ms, E2EL <= 2000 ms", "p99"})
    EXPECT_NE(text.find(part), std::string::npos) << part;
  EXPECT_EQ(text_report(some_totals({}), {}).find("Goodput"), std::string::npos);
}

TEST(Report, OfNothingShowsDashesInsteadOfNumbers) {
  const auto text = text_report(total({}, {}), {});
  EXPECT_EQ(text.find("nan"), std::string::npos);
  EXPECT_NE(text.find(" - "), std::string::npos);
}

TEST(ProgressLine, NeverExceedsTheTerminal) {
  progress now{50, 3, 7, 1000, 65};
  for (std::size_t width = 0; width < 120; ++width) EXPECT_LE(progress_line(now, 100, width).size(), width);
  EXPECT_EQ(progress_line(now, 100, 80), "[###############...............] 50/100, 3 failed, 7 running, 15 outputs/s, 1:05");
  EXPECT_NE(progress_line({}, 0, 80).find("0/0"), std::string::npos);
}

} // namespace
} // namespace troupe::bench
