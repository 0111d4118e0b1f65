#include "telemetry/metrics.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/telemetry/exposition.hpp"

namespace troupe::telemetry {
namespace {

using testing::exposition;
using testing::read_exposition;

constexpr std::uint64_t ms = 1'000'000;

struct quiet_metrics {
  std::vector<std::string> lines;
  metrics subject{"tiny", "1.2.3", [this](std::string_view line) { lines.emplace_back(line); }};
  exposition read() const { return read_exposition(subject.render()); }
};

TEST(Metrics, EverySeriesExistsAtZeroBeforeTheFirstEvent) {
  quiet_metrics m;
  const auto text = m.read();
  for (const auto& [series, value] : text.samples) {
    if (series.starts_with("process_") || series.starts_with("troupe_build_info")) continue;
    EXPECT_EQ(value, 0) << series;
  }
  EXPECT_EQ(text.at("troupe_build_info{version=\"1.2.3\"}"), 1);
  for (const char* how : {"stop", "length", "cancelled", "rejected", "failed"}) {
    EXPECT_EQ(text.at("troupe_requests_total{model=\"tiny\",outcome=\"" + std::string(how) + "\"}"), 0);
  }
  EXPECT_EQ(text.at("troupe_http_requests_total{route=\"other\",status=\"4xx\"}"), 0);
  EXPECT_EQ(text.at("troupe_time_to_first_token_seconds_bucket{model=\"tiny\",le=\"+Inf\"}"), 0);
}

TEST(Metrics, GroupsAndRanksHaveSeriesOfTheirOwnAndSumUpInTheRest) {
  std::vector<std::string> lines;
  metrics subject("tiny", "1", [&](std::string_view line) { lines.emplace_back(line); }, {2, 3});
  subject.set_engine(0, {1, 2, 10, 3, 4});
  subject.set_engine(1, {5, 0, 10, 1, 0});
  subject.set_group(1, true, 4);
  subject.group_restarted(1);
  subject.start_failed(1);
  subject.collective_failed(1, collective_fault::peer_lost);
  subject.moved(2);
  subject.rank_step(1, 2, {2 * ms, 1 * ms, 500'000, 250'000});
  const auto text = read_exposition(subject.render());
  EXPECT_EQ(text.at("troupe_requests_running{model=\"tiny\"}"), 6);
  EXPECT_EQ(text.at("troupe_kv_blocks{model=\"tiny\",state=\"free\"}"), 12);
  EXPECT_EQ(text.at("troupe_group_sequences{model=\"tiny\",replica=\"0\"}"), 3);
  EXPECT_EQ(text.at("troupe_group_up{model=\"tiny\",replica=\"0\"}"), 0);
  EXPECT_EQ(text.at("troupe_group_up{model=\"tiny\",replica=\"1\"}"), 1);
  EXPECT_EQ(text.at("troupe_group_epoch{model=\"tiny\",replica=\"1\"}"), 4);
  EXPECT_EQ(text.at("troupe_group_restarts_total{model=\"tiny\",replica=\"1\"}"), 1);
  EXPECT_EQ(text.at("troupe_group_failed_starts_total{model=\"tiny\",replica=\"1\"}"), 1);
  EXPECT_EQ(text.at("troupe_collective_faults_total{fault=\"peer_lost\",model=\"tiny\",replica=\"1\"}"), 1);
  EXPECT_EQ(text.at("troupe_collective_faults_total{fault=\"deadline\",model=\"tiny\",replica=\"1\"}"), 0);
  EXPECT_EQ(text.at("troupe_collective_faults_total{fault=\"peer_lost\",model=\"tiny\",replica=\"0\"}"), 0);
  EXPECT_EQ(text.at("troupe_device_restarts_total{model=\"tiny\"}"), 1);
  EXPECT_EQ(text.at("troupe_moved_sequences_total{model=\"tiny\"}"), 2);
  const std::string rank = "{model=\"tiny\",rank=\"2\",replica=\"1\"}";
  EXPECT_EQ(text.at("troupe_rank_step_seconds_count" + rank), 1);
  EXPECT_DOUBLE_EQ(text.at("troupe_rank_lag_seconds_total" + rank), 0.001);
  EXPECT_DOUBLE_EQ(text.at("troupe_rank_collective_wait_seconds_total" + rank), 0.0005);
  EXPECT_DOUBLE_EQ(text.at("troupe_rank_collective_move_seconds_total" + rank), 0.00025);
  EXPECT_TRUE(lines.empty());
  subject.rank_step(2, 0, {});
  subject.rank_step(0, 3, {});
  subject.set_group(-1, true, 0);
  subject.collective_failed(0, static_cast<collective_fault>(collective_faults));
  EXPECT_EQ(read_exposition(subject.render()).at("troupe_invalid_statistics_total"), 4);
}

TEST(Metrics, SeriesDoNotAppearLater) {
  quiet_metrics m;
  const auto before = m.read();
  m.subject.request_finished(outcome::stop, {1 * ms, 2 * ms, 3 * ms, 6 * ms, 4});
  m.subject.first_token(3 * ms);
  m.subject.token_gap(1 * ms);
  m.subject.tokens(10, 4, 5);
  m.subject.step(2 * ms, 3, 30);
  m.subject.preempted(1);
  m.subject.group_restarted(0);
  m.subject.kept_weights(100, 1, 2);
  m.subject.keeper_restarted();
  m.subject.numeric_fault();
  m.subject.set_engine(0, {1, 2, 10, 3, 4});
  m.subject.set_ready(true);
  m.subject.http_request("/v1/completions", 200);
  m.subject.slow_reader_dropped();
  const auto after = m.read();
  ASSERT_EQ(before.samples.size(), after.samples.size());
  for (const auto& [series, value] : before.samples) EXPECT_TRUE(after.samples.contains(series)) << series;
}

TEST(Metrics, EventsLandInTheirOwnSeries) {
  quiet_metrics m;
  m.subject.request_finished(outcome::length, {1 * ms, 2 * ms, 30 * ms, 33 * ms, 11});
  m.subject.tokens(10, 4, 5);
  m.subject.tokens(0, 7, 0);
  m.subject.step(2 * ms, 3, 30);
  m.subject.preempted(2);
  m.subject.group_restarted(0);
  m.subject.kept_weights(100, 1, 2);
  m.subject.kept_weights(50, 0, 3);
  m.subject.keeper_restarted();
  m.subject.numeric_fault();
  m.subject.set_engine(0, {1, 2, 10, 3, 4});
  m.subject.set_ready(true);
  m.subject.http_request("/v1/completions", 200);
  m.subject.slow_reader_dropped();
  const auto text = m.read();
  const auto model = [&](const std::string& name) { return text.at(name + "{model=\"tiny\"}"); };
  EXPECT_EQ(text.at("troupe_requests_total{model=\"tiny\",outcome=\"length\"}"), 1);
  EXPECT_EQ(text.at("troupe_requests_total{model=\"tiny\",outcome=\"stop\"}"), 0);
  EXPECT_EQ(model("troupe_prompt_tokens_total"), 10);
  EXPECT_EQ(model("troupe_cached_tokens_total"), 5);
  EXPECT_EQ(model("troupe_generation_tokens_total"), 11);
  EXPECT_EQ(model("troupe_preemptions_total"), 2);
  EXPECT_EQ(model("troupe_device_restarts_total"), 1);
  EXPECT_EQ(model("troupe_kept_weights_bytes"), 50);
  EXPECT_EQ(model("troupe_kept_weights_filled_total"), 1);
  EXPECT_EQ(model("troupe_kept_weights_mapped_total"), 5);
  EXPECT_EQ(model("troupe_keeper_restarts_total"), 1);
  EXPECT_EQ(model("troupe_numeric_faults_total"), 1);
  EXPECT_EQ(model("troupe_requests_running"), 1);
  EXPECT_EQ(model("troupe_requests_waiting"), 2);
  EXPECT_EQ(model("troupe_ready"), 1);
  EXPECT_DOUBLE_EQ(model("troupe_kv_usage_ratio"), 0.3);
  EXPECT_EQ(text.at("troupe_kv_blocks{model=\"tiny\",state=\"used\"}"), 3);
  EXPECT_EQ(text.at("troupe_kv_blocks{model=\"tiny\",state=\"cached\"}"), 4);
  EXPECT_EQ(text.at("troupe_kv_blocks{model=\"tiny\",state=\"free\"}"), 3);
  EXPECT_EQ(text.at("troupe_http_requests_total{route=\"/v1/completions\",status=\"2xx\"}"), 1);
  EXPECT_EQ(text.at("troupe_slow_readers_dropped_total"), 1);
  EXPECT_DOUBLE_EQ(model("troupe_request_queue_seconds_sum"), 0.001);
  EXPECT_DOUBLE_EQ(model("troupe_request_prefill_seconds_sum"), 0.002);
  EXPECT_DOUBLE_EQ(model("troupe_request_decode_seconds_sum"), 0.030);
  EXPECT_DOUBLE_EQ(model("troupe_request_seconds_sum"), 0.033);
  EXPECT_DOUBLE_EQ(model("troupe_time_per_output_token_seconds_sum"), 0.003);
  EXPECT_DOUBLE_EQ(model("troupe_step_seconds_sum"), 0.002);
  EXPECT_EQ(model("troupe_step_sequences_sum"), 3);
  EXPECT_EQ(model("troupe_step_tokens_sum"), 30);
  EXPECT_TRUE(m.lines.empty());
}

// A histogram whose buckets are all equal, or one that leaves the queue out, says nothing about what users wait for.
TEST(Metrics, TimeToFirstTokenCountsTheQueueAndSpreadsOverBuckets) {
  quiet_metrics m;
  double expected_sum = 0;
  for (std::uint64_t i = 1; i <= 10; ++i) { // one running slot: each waits for those before it
    m.subject.first_token(i * 40 * ms);
    m.subject.request_finished(outcome::stop, {(i - 1) * 40 * ms, 40 * ms, 20 * ms, i * 40 * ms + 20 * ms, 5});
    expected_sum += 0.04 * static_cast<double>(i);
  }
  const auto text = m.read();
  const auto bucket = [&](const std::string& le) {
    return text.at("troupe_time_to_first_token_seconds_bucket{model=\"tiny\",le=\"" + le + "\"}");
  };
  EXPECT_NEAR(text.at("troupe_time_to_first_token_seconds_sum{model=\"tiny\"}"), expected_sum, 1e-9);
  EXPECT_EQ(text.at("troupe_time_to_first_token_seconds_count{model=\"tiny\"}"), 10);
  EXPECT_EQ(bucket("0.03"), 0);
  EXPECT_EQ(bucket("0.05"), 1);
  EXPECT_EQ(bucket("0.1"), 2);
  EXPECT_EQ(bucket("0.2"), 5);
  EXPECT_EQ(bucket("0.5"), 10);
  EXPECT_EQ(bucket("+Inf"), 10);
  // The first one never waited, so nine queue times; prefill is the same for all.
  EXPECT_EQ(text.at("troupe_request_queue_seconds_count{model=\"tiny\"}"), 9);
  EXPECT_NEAR(text.at("troupe_request_queue_seconds_sum{model=\"tiny\"}"), expected_sum - 0.4, 1e-9);
}

TEST(Metrics, BucketsTellTwoMillisecondsFromThreeAndFourMinutesFromFive) {
  quiet_metrics m;
  const auto text = m.read();
  for (const auto& [name, family] : text.families) {
    if (family.type != "histogram" || !name.ends_with("_seconds")) continue;
    std::vector<double> bounds;
    for (const auto& le : family.bounds) {
      if (le != "+Inf") bounds.push_back(std::stod(le));
    }
    std::sort(bounds.begin(), bounds.end());
    ASSERT_GT(bounds.size(), 2U) << name;
    EXPECT_LE(bounds.front(), 1e-4) << name;
    EXPECT_GE(bounds.back(), 300) << name;
    for (std::size_t i = 1; i < bounds.size(); ++i) EXPECT_LE(bounds[i] / bounds[i - 1], 2.0 + 1e-9) << name << " at " << bounds[i];
  }
}

TEST(Metrics, RequestsThatNeverReachedAStageLeaveItsHistogramAlone) {
  quiet_metrics m;
  m.subject.request_finished(outcome::rejected, {});
  m.subject.request_finished(outcome::cancelled, {5 * ms, 0, 0, 9 * ms, 0});
  m.subject.request_finished(outcome::stop, {1 * ms, 1 * ms, 0, 2 * ms, 1}); // one token: no time between tokens
  const auto text = m.read();
  const auto count = [&](const std::string& name) { return text.at("troupe_" + name + "_seconds_count{model=\"tiny\"}"); };
  EXPECT_EQ(count("request_queue"), 2);
  EXPECT_EQ(count("request_prefill"), 1);
  EXPECT_EQ(count("request_decode"), 0);
  EXPECT_EQ(count("time_per_output_token"), 0);
  EXPECT_EQ(count("request"), 1);
}

TEST(Metrics, UnknownPathsAndStatusesMakeNoNewSeries) {
  quiet_metrics m;
  const auto before = m.read().samples.size();
  for (int i = 0; i < 10'000; ++i) m.subject.http_request("/no/such/path/" + std::to_string(i), 404);
  m.subject.http_request(std::string(1U << 20, 'x'), 200);
  m.subject.http_request("", 0);
  m.subject.http_request("/metrics\n", -7);
  m.subject.http_request("/metrics", std::numeric_limits<int>::max());
  m.subject.http_request("other", 599);
  const auto text = m.read();
  EXPECT_EQ(text.samples.size(), before);
  EXPECT_LT(m.subject.render().size(), 128U << 10);
  EXPECT_EQ(text.at("troupe_http_requests_total{route=\"other\",status=\"4xx\"}"), 10'000);
  EXPECT_EQ(text.at("troupe_http_requests_total{route=\"other\",status=\"2xx\"}"), 1);
  EXPECT_EQ(text.at("troupe_http_requests_total{route=\"other\",status=\"5xx\"}"), 3);
  EXPECT_EQ(text.at("troupe_http_requests_total{route=\"/metrics\",status=\"5xx\"}"), 1);
  EXPECT_EQ(m.lines.size(), 1U);
}

TEST(Metrics, NegativeStepsAreClampedCountedAndLoggedOnce) {
  quiet_metrics m;
  m.subject.tokens(10, 2, 4);
  for (int i = 0; i < 50; ++i) m.subject.tokens(-5, -1, -1);
  m.subject.preempted(-3);
  m.subject.step(1 * ms, -1, std::numeric_limits<std::int64_t>::min());
  const auto text = m.read();
  EXPECT_EQ(text.at("troupe_prompt_tokens_total{model=\"tiny\"}"), 10);
  EXPECT_EQ(text.at("troupe_generation_tokens_total{model=\"tiny\"}"), 2);
  EXPECT_EQ(text.at("troupe_cached_tokens_total{model=\"tiny\"}"), 4);
  EXPECT_EQ(text.at("troupe_preemptions_total{model=\"tiny\"}"), 0);
  EXPECT_EQ(text.at("troupe_step_tokens_sum{model=\"tiny\"}"), 0);
  EXPECT_EQ(text.at("troupe_invalid_statistics_total"), 153);
  ASSERT_EQ(m.lines.size(), 6U); // three token counters, preemptions, step sequences, step tokens
  EXPECT_THAT(m.lines[0], ::testing::HasSubstr("prompt tokens: -5"));
}

TEST(Metrics, CachedTokensNeverExceedPromptTokens) {
  quiet_metrics m;
  m.subject.tokens(8, 0, 8);  // full hit
  m.subject.tokens(8, 0, 20); // recomputed after a preemption and hit more than its prompt
  m.subject.tokens(0, 1, -1); // "unset"
  const auto text = m.read();
  EXPECT_EQ(text.at("troupe_prompt_tokens_total{model=\"tiny\"}"), 16);
  EXPECT_EQ(text.at("troupe_cached_tokens_total{model=\"tiny\"}"), 16);
  EXPECT_EQ(m.lines.size(), 1U);
}

TEST(Metrics, CachedTokensMayBeReportedAfterTheirPrompt) {
  quiet_metrics m;
  m.subject.tokens(8, 0, 0);
  m.subject.tokens(0, 3, 0);
  m.subject.tokens(0, 0, 5);
  const auto text = m.read();
  EXPECT_EQ(text.at("troupe_cached_tokens_total{model=\"tiny\"}"), 5);
  EXPECT_EQ(text.at("troupe_invalid_statistics_total"), 0);
}

TEST(Metrics, ClocksThatRanBackwardsDoNotMakeHugeLatencies) {
  quiet_metrics m;
  const auto backwards = static_cast<std::uint64_t>(-5);
  m.subject.first_token(backwards);
  m.subject.token_gap(backwards);
  m.subject.step(backwards, 1, 1);
  m.subject.request_finished(outcome::stop, {backwards, backwards, backwards, backwards, backwards});
  const auto text = m.read();
  for (const auto& [series, value] : text.samples) {
    if (!series.starts_with("troupe_") || series.find("_seconds_sum") == std::string::npos) continue;
    EXPECT_EQ(value, 0) << series;
  }
  EXPECT_EQ(text.at("troupe_requests_total{model=\"tiny\",outcome=\"stop\"}"), 1);
  EXPECT_EQ(m.lines.size(), 1U);
}

TEST(Metrics, ImpossibleEngineStateIsClampedToThePool) {
  quiet_metrics m;
  m.subject.set_engine(0, {-1, -2, 10, 12, 5});
  auto text = m.read();
  EXPECT_EQ(text.at("troupe_requests_running{model=\"tiny\"}"), 0);
  EXPECT_EQ(text.at("troupe_kv_blocks{model=\"tiny\",state=\"used\"}"), 10);
  EXPECT_EQ(text.at("troupe_kv_blocks{model=\"tiny\",state=\"cached\"}"), 0);
  EXPECT_EQ(text.at("troupe_kv_blocks{model=\"tiny\",state=\"free\"}"), 0);
  EXPECT_EQ(text.at("troupe_kv_usage_ratio{model=\"tiny\"}"), 1);
  m.subject.set_engine(0, {}); // no pool: 0 / 0 is 0, not NaN
  text = m.read();
  EXPECT_EQ(text.at("troupe_kv_usage_ratio{model=\"tiny\"}"), 0);
}

TEST(Metrics, ALogThatThrowsDoesNotReachTheEngine) {
  metrics subject("tiny", "1", [](std::string_view) { throw std::runtime_error("disk full"); });
  EXPECT_NO_THROW(subject.tokens(-1, 0, 0));
  EXPECT_EQ(read_exposition(subject.render()).at("troupe_invalid_statistics_total"), 1);
}

TEST(Metrics, OutcomeOutsideTheEnumCountsAsFailed) {
  quiet_metrics m;
  m.subject.request_finished(static_cast<outcome>(200), {});
  EXPECT_EQ(m.read().at("troupe_requests_total{model=\"tiny\",outcome=\"failed\"}"), 1);
  EXPECT_EQ(m.lines.size(), 1U);
}

TEST(Metrics, ModelNamesWithQuotesNewlinesAndBrokenUtf8StayOneValidLabel) {
  const metrics subject("a\"b\\c\nd\xff", "1");
  const auto text = read_exposition(subject.render());
  EXPECT_EQ(text.at("troupe_ready{model=\"a\\\"b\\\\c\\nd\xef\xbf\xbd\"}"), 0);
}

TEST(Metrics, FamiliesComeSortedWithHelp) {
  const auto text = quiet_metrics().read();
  EXPECT_TRUE(std::is_sorted(text.family_order.begin(), text.family_order.end()));
  for (const auto& [name, family] : text.families) EXPECT_FALSE(family.help.empty()) << name;
}

TEST(Metrics, ScrapesUnderWayWhileManyThreadsReportStayConsistent) {
  quiet_metrics m;
  constexpr int writers = 4, rounds = 2'000;
  std::vector<std::thread> threads;
  for (int t = 0; t < writers; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < rounds; ++i) {
        m.subject.tokens(3, 1, 3);
        m.subject.first_token(static_cast<std::uint64_t>(i) * 1000);
        m.subject.set_engine(0, {i, 0, 100, i % 50, 50});
        m.subject.http_request("/health", 200);
      }
    });
  }
  double last = 0;
  for (int i = 0; i < 20; ++i) {
    const auto text = m.read();
    const double prompt = text.at("troupe_prompt_tokens_total{model=\"tiny\"}");
    EXPECT_GE(prompt, text.at("troupe_cached_tokens_total{model=\"tiny\"}"));
    EXPECT_GE(prompt, last);
    last = prompt;
    const double free = text.at("troupe_kv_blocks{model=\"tiny\",state=\"free\"}");
    const double used = text.at("troupe_kv_blocks{model=\"tiny\",state=\"used\"}");
    const double cached = text.at("troupe_kv_blocks{model=\"tiny\",state=\"cached\"}");
    EXPECT_THAT(free + used + cached, ::testing::AnyOf(0, 100)); // 0 before the first report
  }
  for (auto& thread : threads) thread.join();
  const auto text = m.read();
  EXPECT_EQ(text.at("troupe_prompt_tokens_total{model=\"tiny\"}"), 3.0 * writers * rounds);
  EXPECT_EQ(text.at("troupe_time_to_first_token_seconds_count{model=\"tiny\"}"), writers * rounds);
  EXPECT_EQ(text.at("troupe_http_requests_total{route=\"/health\",status=\"2xx\"}"), writers * rounds);
}

TEST(Metrics, MachinesOfAClusterComeAndGoAndTheirNamesStayBounded) {
  metrics m("tiny", "1");
  m.set_node("a", {true, 4, 3});
  m.set_node("a", {true, 4, 4});
  m.set_node("b", {true, 2, 0});
  m.set_node("b", {.missing = true});
  m.node_lost();
  m.set_node("c", {true, 2, 1, true});
  m.set_node("c", {true, 2, 0, true});
  const auto has = [&](const std::string& line) { return m.render().find(line) != std::string::npos; };
  EXPECT_TRUE(has("troupe_nodes{model=\"tiny\"} 2\n"));
  EXPECT_TRUE(has("troupe_node_ranks{model=\"tiny\",node=\"a\"} 4\n"));
  EXPECT_TRUE(has("troupe_node_up{model=\"tiny\",node=\"b\"} 0\n"));
  EXPECT_TRUE(has("troupe_node_missing{model=\"tiny\",node=\"b\"} 1\n"));
  EXPECT_TRUE(has("troupe_node_leaving{model=\"tiny\",node=\"c\"} 1\n"));
  EXPECT_TRUE(has("troupe_node_joins_total{model=\"tiny\"} 3\n"));
  EXPECT_TRUE(has("troupe_node_drains_total{model=\"tiny\"} 1\n")) << "a drain is counted once";
  EXPECT_TRUE(has("troupe_node_losses_total{model=\"tiny\"} 1\n"));
  m.set_node("b", {true, 2, 0});
  m.set_node("c", {});
  EXPECT_TRUE(has("troupe_node_missing{model=\"tiny\",node=\"b\"} 0\n")) << "it is back";
  EXPECT_TRUE(has("troupe_node_missing{model=\"tiny\",node=\"c\"} 0\n")) << "it left in order";
  EXPECT_TRUE(has("troupe_node_leaving{model=\"tiny\",node=\"c\"} 0\n"));
  for (int i = 0; i < 300; ++i) {
    m.set_node("n" + std::to_string(i), {true, 1, 0});
    m.set_node("n" + std::to_string(i), {});
  }
  EXPECT_FALSE(has("node=\"n0\"")) << "gone longest";
  EXPECT_TRUE(has("node=\"n299\""));
  EXPECT_TRUE(has("troupe_node_up{model=\"tiny\",node=\"a\"} 1\n")) << "who is up is not forgotten";
}

} // namespace
} // namespace troupe::telemetry
