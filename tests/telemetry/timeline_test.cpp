#include "telemetry/timeline.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "core/json.hpp"

namespace troupe::telemetry {
namespace {

std::uint64_t now() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count());
}

step_record record_of(step_number step, std::uint64_t result_ns, std::int64_t decode_rows, std::int64_t prefill_tokens,
                      epoch_number epoch = 1) {
  return {epoch, step, result_ns, decode_rows, prefill_tokens};
}

// Spans of a trace by their track's name, and the rest under its kind.
std::map<std::string, std::vector<value>> read_trace(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const auto whole = json::parse(std::string(std::istreambuf_iterator<char>(file), {}));
  EXPECT_TRUE(whole);
  std::map<std::int64_t, std::string> tracks;
  std::map<std::string, std::vector<value>> out;
  for (const value& e : whole->find("traceEvents")->as_array()) {
    const std::string kind = e.find("ph")->as_string();
    if (kind == "M" && e.find("name")->as_string() == "thread_name")
      tracks[e.find("tid")->as_int()] = e.find("args")->find("name")->as_string();
    if (kind == "M") continue;
    out[kind == "X" ? tracks.at(e.find("tid")->as_int()) : kind].push_back(e);
  }
  out["summary"] = {*whole->find("otherData")};
  return out;
}

class timeline_test : public testing::Test {
 protected:
  void SetUp() override {
    path_ =
        std::filesystem::temp_directory_path() /
        (std::string("timeline_") + testing::UnitTest::GetInstance()->current_test_info()->name() + std::to_string(::getpid()) + ".json");
  }
  void TearDown() override { std::filesystem::remove(path_); }
  std::filesystem::path path_;
};

TEST(step_gaps_test, counts_the_time_between_a_step_and_the_decode_step_after_it) {
  step_gaps gaps;
  EXPECT_FALSE(gaps.observe(1, {100, 200}, false)); // nothing before it
  EXPECT_EQ(gaps.observe(1, {230, 300}, true), (time_span{200, 230}));
  EXPECT_FALSE(gaps.observe(1, {300, 400}, true));  // without a gap
  EXPECT_FALSE(gaps.observe(1, {900, 950}, false)); // a prefill alone: the device may have had nothing to do
  EXPECT_EQ(gaps.summary().steps, 2U);
  EXPECT_EQ(gaps.summary().idle_ns, 30U);
  EXPECT_EQ(gaps.summary().busy_ns, 170U);
  EXPECT_DOUBLE_EQ(gaps.summary().share(), 0.15);
}

TEST(step_gaps_test, overlapping_steps_are_no_negative_gap_and_no_time_counted_twice) {
  step_gaps gaps;
  gaps.observe(1, {100, 200}, true);
  EXPECT_FALSE(gaps.observe(1, {190, 260}, true));
  EXPECT_EQ(gaps.summary().busy_ns, 60U);
  EXPECT_EQ(gaps.summary().idle_ns, 0U);
}

TEST(step_gaps_test, the_time_that_a_device_was_lost_is_not_idle_time) {
  step_gaps gaps;
  gaps.observe(1, {100, 200}, true);
  EXPECT_FALSE(gaps.observe(2, {5000, 5100}, true));
  EXPECT_EQ(gaps.summary().steps, 0U);
  EXPECT_EQ(gaps.observe(2, {5101, 5200}, true), (time_span{5100, 5101}));
}

TEST_F(timeline_test, draws_three_stages_groups_and_gaps_on_tracks_of_their_own) {
  const std::uint64_t t = now();
  {
    timeline line(path_);
    const stage_times first{
        10'000, 100'000, 5'000, t, t + 20'000, t + 125'000, {{kernel_group::layers, 90'000}, {kernel_group::sampling, 10'000}}};
    const stage_times second{10'000, 200'000, 5'000, t + 15'000, t + 150'000, t + 355'000, {}};
    line.step(record_of(1, t + 130'000, 0, 64), first);
    line.step(record_of(2, t + 360'000, 8, 0), second);
  }
  auto trace = read_trace(path_);
  ASSERT_EQ(trace["prepare"].size(), 2U);
  ASSERT_EQ(trace["compute"].size(), 2U);
  ASSERT_EQ(trace["deliver"].size(), 2U);
  EXPECT_EQ(trace["compute"][0].find("name")->as_string(), "prefill");
  EXPECT_EQ(trace["compute"][1].find("name")->as_string(), "decode");
  EXPECT_EQ(trace["compute"][1].find("args")->find("decode_rows")->as_int(), 8);
  EXPECT_DOUBLE_EQ(trace["compute"][1].find("dur")->as_double(), 200.0);
  // The second step is prepared while the first one computes.
  const double prepared = trace["prepare"][1].find("ts")->as_double();
  EXPECT_LT(prepared, trace["compute"][0].find("ts")->as_double() + trace["compute"][0].find("dur")->as_double());
  ASSERT_EQ(trace["kernel groups of a step (sums)"].size(), 2U);
  EXPECT_EQ(trace["kernel groups of a step (sums)"][1].find("name")->as_string(), "sampling");
  ASSERT_EQ(trace["idle between decode steps"].size(), 1U);
  EXPECT_NEAR(trace["idle between decode steps"][0].find("dur")->as_double(), 30.0, 1e-6);
  EXPECT_NEAR(trace["summary"][0].find("idle_share")->as_double(), 30.0 / 230.0, 1e-9);
}

TEST_F(timeline_test, stages_without_dates_are_laid_before_the_result) {
  const std::uint64_t t = now() + 1'000'000;
  {
    timeline line(path_);
    line.step(record_of(1, t, 4, 0), {1000, 2000, 3000, 0, 0, 0, {}});
  }
  auto trace = read_trace(path_);
  const double compute = trace["compute"].at(0).find("ts")->as_double(), deliver = trace["deliver"].at(0).find("ts")->as_double();
  EXPECT_NEAR(compute - trace["prepare"].at(0).find("ts")->as_double(), 1.0, 1e-6);
  EXPECT_NEAR(deliver - compute, 2.0, 1e-6);
}

TEST_F(timeline_test, phases_of_a_request_nest_and_balance) {
  const std::uint64_t t = now();
  {
    timeline line(path_);
    const request_moments moments{t, t + 1000, t + 5000};
    line.first_token(9, moments);
    line.ended(9, moments, t + 9000, 4, "stop");
    line.ended(10, {t, 0, 0}, t + 2000, 0, "cancelled"); // while it waited
    line.mark("device lost", t);
  }
  auto trace = read_trace(path_);
  std::map<std::string, int> open; // id and name -> begins less ends
  for (const value& e : trace["b"]) ++open[e.find("id")->as_string() + e.find("name")->as_string()];
  for (const value& e : trace["e"]) --open[e.find("id")->as_string() + e.find("name")->as_string()];
  EXPECT_EQ(open.size(), 6U); // request, queued, prefill, decode; request, queued
  for (const auto& [name, count] : open) EXPECT_EQ(count, 0) << name;
  ASSERT_EQ(trace["n"].size(), 2U);
  EXPECT_EQ(trace["n"][0].find("name")->as_string(), "finished: stop");
  EXPECT_EQ(trace["n"][1].find("name")->as_string(), "finished: cancelled");
  EXPECT_EQ(trace["i"].at(0).find("name")->as_string(), "device lost");
}

TEST(timeline, counts_without_a_file_and_says_so) {
  timeline line;
  const std::uint64_t t = now();
  for (step_number s = 1; s <= 5; ++s) line.step(record_of(s, t, 1, 0), {0, 900, 0, t, t + s * 1000, t + s * 1000 + 900, {}});
  line.ended(1, {t, t, t}, t, 1, "stop");
  EXPECT_EQ(line.idle().steps, 4U);
  EXPECT_NEAR(line.idle().share(), 0.1, 1e-9);
  EXPECT_THAT(line.describe(), testing::HasSubstr("idle for 10.00%"));
}

TEST(timeline, counts_rows_and_tokens_of_a_plan) {
  step_plan plan;
  plan.items = {{0, work_kind::decode, 5, 1, true, std::nullopt},
                {1, work_kind::prefill, 0, 17, false, std::nullopt},
                {2, work_kind::verify, 5, 4, true, std::nullopt}};
  step_record record;
  count_items(plan, record);
  EXPECT_EQ(record.decode_rows, 5);
  EXPECT_EQ(record.prefill_tokens, 17);
}

TEST_F(timeline_test, replicas_and_ranks_have_rows_of_their_own) {
  const auto start = now();
  {
    timeline line(path_, {2, 4});
    for (std::int32_t replica : {0, 1}) {
      step_record record = record_of(1, start + 2000, 1, 0);
      record.replica = replica;
      line.step(record, {0, 1000, 0, 0, start + 1000, 0, {}});
    }
    step_record record = record_of(1, start + 2000, 1, 0);
    record.replica = 1;
    line.rank_step(record, 3, {1'500'000, 500'000, 400'000, 300'000}, start + 2'500'000);
    line.rank_step(record, 0, {1000, 0, 0, 0}, start + 2000);
    EXPECT_EQ(line.idle().steps, 0U) << "each replica's first step";
  }
  auto trace = read_trace(path_);
  EXPECT_EQ(trace["replica 0: compute"].size(), 1U);
  EXPECT_EQ(trace["replica 1: compute"].size(), 1U);
  ASSERT_EQ(trace["replica 1: ranks that answered later than the first of their stage"].size(), 1U);
  const value& late = trace["replica 1: ranks that answered later than the first of their stage"].front();
  EXPECT_EQ(late.find("name")->as_string(), "rank 3 late");
  EXPECT_EQ(late.find("args")->find("rank")->as_int(), 3);
  EXPECT_DOUBLE_EQ(late.find("dur")->as_double(), 500);
  const auto& spans = trace["replica 1: rank 3"];
  ASSERT_EQ(spans.size(), 3U);
  EXPECT_EQ(spans[0].find("name")->as_string(), "decode");
  EXPECT_DOUBLE_EQ(spans[0].find("dur")->as_double(), 1500);
  EXPECT_EQ(spans[0].find("args")->find("late_ns")->as_int(), 500'000);
  EXPECT_EQ(spans[1].find("name")->as_string(), "waiting for peers (sum)");
  EXPECT_DOUBLE_EQ(spans[1].find("dur")->as_double(), 400);
  EXPECT_EQ(spans[2].find("name")->as_string(), "in collectives (sum)");
  EXPECT_NEAR(spans[2].find("ts")->as_double() - spans[0].find("ts")->as_double(), 400, 1) << "behind the waiting, within the step";
  EXPECT_EQ(trace["replica 1: rank 0"].size(), 1U) << "the first to answer is not late";
  EXPECT_TRUE(trace["replica 0: rank 0"].empty());
}

} // namespace
} // namespace troupe::telemetry
