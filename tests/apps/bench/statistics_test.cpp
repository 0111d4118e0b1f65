#include "apps/bench/statistics.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace troupe::bench {
namespace {

request_record record(double sent, double first, double last, std::int64_t tokens) {
  request_record out;
  out.due = out.sent = sent;
  out.first = first;
  out.last = out.ended = last;
  out.output_tokens = tokens;
  out.prompt_tokens = 10;
  return out;
}

TEST(Midmean, IsTheMeanOfTheMiddleHalf) {
  EXPECT_DOUBLE_EQ(midmean({900, 1, 3, 2}), 2.5);   // of 2 and 3
  EXPECT_DOUBLE_EQ(midmean({4, 4, 0, 0, 4, 0}), 2); // between two humps
  EXPECT_DOUBLE_EQ(midmean({1, 2, 6}), (0.25 * 1 + 2 + 0.25 * 6) / 1.5);
  EXPECT_DOUBLE_EQ(midmean({5}), 5);
  EXPECT_DOUBLE_EQ(midmean({}), 0);
}

TEST(Percentile, IsLinearBetweenTheClosestRanks) {
  const std::vector<double> four = {1, 2, 3, 4};
  EXPECT_DOUBLE_EQ(percentile(four, 0), 1);
  EXPECT_DOUBLE_EQ(percentile(four, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(percentile(four, 0.9), 3.7);
  EXPECT_DOUBLE_EQ(percentile(four, 1), 4);
  EXPECT_DOUBLE_EQ(percentile({7}, 0.99), 7);
  EXPECT_DOUBLE_EQ(percentile({}, 0.5), 0);
}

TEST(Percentile, StaysWithinTheSamplesWhateverTheQuantile) {
  EXPECT_DOUBLE_EQ(percentile({1, 2}, -1), 1);
  EXPECT_DOUBLE_EQ(percentile({1, 2}, 2), 2);
}

TEST(Summary, DoesNotDependOnTheOrderOfSamples) {
  std::vector<double> samples(101);
  for (int i = 0; i <= 100; ++i) samples[static_cast<std::size_t>(i)] = i;
  std::shuffle(samples.begin(), samples.end(), std::mt19937(3));
  const auto out = summarize(samples);
  EXPECT_EQ(out.count, 101U);
  EXPECT_DOUBLE_EQ(out.mean, 50);
  EXPECT_DOUBLE_EQ(out.median, 50);
  EXPECT_DOUBLE_EQ(out.p90, 90);
  EXPECT_DOUBLE_EQ(out.p99, 99);
  EXPECT_DOUBLE_EQ(out.max, 100);
}

TEST(Record, TimePerOutputTokenNeedsTwoTokensAndLeavesTheFirstOut) {
  EXPECT_FALSE(time_per_output_token(record(0, 1, 1, 1)));
  EXPECT_DOUBLE_EQ(time_per_output_token(record(0, 1, 2, 11)).value(), 0.1);
  EXPECT_DOUBLE_EQ(time_to_first_token(record(0.25, 1, 2, 11)), 0.75);
}

TEST(Record, AnAnswerWithoutVisibleTextHasItsFirstTokenAtItsEnd) {
  request_record quiet;
  quiet.sent = 1;
  quiet.ended = 3;
  quiet.output_tokens = 4;
  EXPECT_DOUBLE_EQ(time_to_first_token(quiet), 2);
  EXPECT_FALSE(time_per_output_token(quiet));
}

TEST(Objectives, AreReadAndBadOnesNamed) {
  const auto good = parse_objectives({"ttft:200", "tpot:12.5", "e2el:3000"});
  EXPECT_TRUE(good.failure.empty());
  EXPECT_EQ(good.value.ttft, 200);
  EXPECT_EQ(good.value.tpot, 12.5);
  EXPECT_EQ(good.value.e2el, 3000);
  EXPECT_FALSE(parse_objectives({}).value.any());
  for (const char* bad : {"ttft", "ttft:", "ttft:x", "ttft:5x", "ttft:-1", "ttft:0", "ttft:nan", "ttft:inf", "itl:5", ":5", ""}) {
    EXPECT_NE(parse_objectives({bad}).failure.find(bad), std::string::npos) << bad;
    EXPECT_FALSE(parse_objectives({bad}).failure.empty()) << bad;
  }
}

TEST(Objectives, AreMetAtTheLimitAndNeverByAFailure) {
  const auto all = parse_objectives({"ttft:500", "tpot:100", "e2el:1500"}).value;
  auto good = record(0, 0.5, 1.5, 11);
  EXPECT_TRUE(meets(good, all));
  EXPECT_FALSE(meets(record(0, 0.501, 1.5, 11), all));
  EXPECT_FALSE(meets(record(0, 0.5, 1.5, 10), all)); // 111 ms a token
  EXPECT_FALSE(meets(record(0, 0.5, 1.501, 12), all));
  EXPECT_TRUE(meets(record(0, 0.5, 0.5, 1), all)); // no second token to be late
  good.failure = "timeout";
  EXPECT_FALSE(meets(good, all));
}

TEST(Totals, LeaveFailuresOutOfLatenciesAndThroughput) {
  std::vector<request_record> records = {record(1, 1.1, 2, 10), record(1.5, 1.7, 3, 14), record(2, 2.1, 9, 99)};
  records[2].failure = "timeout";
  records[0].gaps = {0.1, 0.2};
  records[1].due = 1.25;
  const auto out = total(records, parse_objectives({"ttft:150"}).value);
  EXPECT_EQ(out.completed, 2U);
  EXPECT_EQ(out.failed, 1U);
  EXPECT_EQ(out.prompt_tokens, 20);
  EXPECT_EQ(out.output_tokens, 24);
  EXPECT_DOUBLE_EQ(out.duration, 8);
  EXPECT_DOUBLE_EQ(out.requests_per_second, 0.25);
  EXPECT_DOUBLE_EQ(out.output_tokens_per_second, 3);
  EXPECT_DOUBLE_EQ(out.total_tokens_per_second, 5.5);
  EXPECT_DOUBLE_EQ(out.goodput.value(), 0.125);
  EXPECT_EQ(out.ttft.count, 2U);
  EXPECT_EQ(out.itl.count, 2U);
  EXPECT_NEAR(out.itl.mean, 0.15, 1e-12);
  EXPECT_DOUBLE_EQ(out.send_delay.max, 0.25);
  EXPECT_EQ(out.peak_concurrency, 2U);
}

TEST(Totals, OfNothingAreZeroAndFinite) {
  const auto out = total({}, {});
  EXPECT_EQ(out.completed, 0U);
  EXPECT_EQ(out.requests_per_second, 0);
  EXPECT_FALSE(out.goodput);
  auto instant = record(1, 1, 1, 1);
  EXPECT_TRUE(std::isfinite(total({instant}, {}).requests_per_second));
}

TEST(Totals, CountFailuresByKindMostFrequentFirst) {
  std::vector<request_record> records(5, record(0, 1, 2, 3));
  records[0].failure = "connect";
  records[1].failure = records[2].failure = records[4].failure = "http 429";
  const auto out = total(records, {});
  ASSERT_EQ(out.failures.size(), 2U);
  EXPECT_EQ(out.failures[0], (std::pair<std::string, std::size_t>{"http 429", 3}));
  EXPECT_EQ(out.failures[1], (std::pair<std::string, std::size_t>{"connect", 1}));
}

TEST(Totals, RequestsThatTouchDoNotOverlap) {
  EXPECT_EQ(total({record(0, 0.5, 1, 2), record(1, 1.5, 2, 2)}, {}).peak_concurrency, 1U);
  EXPECT_EQ(total({record(0, 0.5, 3, 2), record(1, 1.5, 2, 2), record(1, 1.5, 4, 2)}, {}).peak_concurrency, 3U);
}

} // namespace
} // namespace troupe::bench
