#include "apps/bench/report.hpp"

#include <gtest/gtest.h>

#include "core/json.hpp"
#include "simulation/workload.hpp"

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

TEST(Report, TheSavedTraceIsOneThatTheSimulatorReads) {
  request_record first, failed, second;
  first.sent = 0.25;
  first.prompt_tokens = 128;
  first.output_tokens = 32;
  failed.sent = 0.5;
  failed.failure = "http 429";
  second.sent = 1.75;
  second.prompt_tokens = 7;
  second.output_tokens = 1;
  const auto trace = simulation::parse_trace(trace_csv({first, failed, second}), false);
  ASSERT_TRUE(trace) << trace.failure().message;
  ASSERT_EQ(trace->size(), 2U);
  EXPECT_EQ((*trace)[0].prompt_tokens, 128);
  EXPECT_EQ((*trace)[0].output_tokens, 32);
  EXPECT_DOUBLE_EQ((*trace)[1].arrival_ns, 1.5e9);
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
