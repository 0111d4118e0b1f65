// Drafts cost rows and change nothing else. That each stream is the reference's whatever else happens is the matrix's to show.
#include "scheduler/speculation.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <numeric>

#include "tests/scheduler/scheduler_testing.hpp"

namespace troupe {
namespace {

using namespace test;

constexpr std::int32_t kDrafts = 7;

// With one letter every draft is right.
scheduler_config config(draft_source source, std::int32_t vocab, bool measured = false) {
  scheduler_config c;
  c.device = device(200, 4, 8, 64, 400);
  c.device.vocab_size = vocab;
  c.device.max_verify_tokens = c.device.max_proposals = 64;
  c.speculation = {source, kDrafts, measured};
  return c;
}

int steps_of(bench& b) {
  int steps = 0;
  while (b.turn()) ++steps;
  return steps;
}

std::uint64_t sum(const std::array<std::uint64_t, draft_counts::kPlaces>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
}

class Drafts : public ::testing::TestWithParam<draft_source> {};
INSTANTIATE_TEST_SUITE_P(BySource, Drafts, ::testing::Values(draft_source::ngram, draft_source::model));

TEST_P(Drafts, AStreamThatRepeatsItselfTakesAFewSteps) {
  bench b(config(GetParam(), 1));
  ASSERT_FALSE(b.sched.add(request(1, {0, 0, 0}, 81), 0));
  EXPECT_LE(steps_of(b), 1 + 80 / (1 + kDrafts) + 2);
  EXPECT_EQ(b.tokens[(sequence_id{1, 0})], std::vector<token_id>(81, 0));
}

TEST_P(Drafts, MaxTokensEndsARunInItsMiddle) {
  for (std::int32_t outputs = 1; outputs <= 20; ++outputs) {
    bench b(config(GetParam(), 1));
    ASSERT_FALSE(b.sched.add(request(1, {0, 0, 0}, outputs), 0));
    b.run();
    const auto& end = b.ends[{1, 0}];
    EXPECT_EQ(end.finish, finish_reason::length);
    EXPECT_EQ(end.output_tokens, outputs);
    EXPECT_EQ(b.tokens[(sequence_id{1, 0})].size(), static_cast<std::size_t>(outputs));
    EXPECT_EQ(b.rows, 3 + outputs - 1) << "no row behind the last that is needed";
  }
}

// Behind the stop token a run may go on; nobody hears of that. Below min_tokens it is a token like others.
TEST_P(Drafts, AStopTokenEndsARunInItsMiddle) {
  for (std::int32_t least = 0; least <= 12; ++least) {
    bench b(config(GetParam(), 1));
    auto r = request(1, {0, 0, 0}, 40);
    r.stop.stop_token_ids = {0};
    r.stop.min_tokens = least;
    ASSERT_FALSE(b.sched.add(std::move(r), 0));
    b.run();
    const auto& end = b.ends[{1, 0}];
    EXPECT_EQ(end.finish, finish_reason::stop);
    EXPECT_EQ(end.output_tokens, least + 1);
    EXPECT_EQ(b.tokens[(sequence_id{1, 0})].size(), static_cast<std::size_t>(least));
  }
}

TEST_P(Drafts, NothingIsPlannedAheadOfAVerification) {
  bench b(config(GetParam(), 1));
  ASSERT_FALSE(b.sched.add(request(1, {0, 0, 0}, 50), 0));
  bool verified = false;
  while (true) {
    auto plan = b.sched.schedule(++b.now);
    if (!plan) break;
    b.results.push_back(b.dev.run(*plan));
    if (plan->items.front().kind == work_kind::verify) {
      verified = true;
      EXPECT_FALSE(b.sched.schedule(++b.now));
      ASSERT_FALSE(b.sched.add(request(2 + plan->step, {1, 2}, 1), 0)); // not even what has just come
      EXPECT_FALSE(b.sched.schedule(++b.now));
    }
    b.absorb(b.sched.apply(b.results.front(), ++b.now));
    b.results.pop_front();
  }
  EXPECT_TRUE(verified);
}

TEST(Drafting, BlocksOfRejectedDraftsComeBackAtOnce) {
  auto c = config(draft_source::ngram, 3);
  c.device.block_size = 1;
  c.prefix_caching = false;
  bench b(c);
  const std::vector<token_id> prompt{1, 2, 1, 2, 1};
  ASSERT_FALSE(b.sched.add(request(1, prompt, 60), 0));
  std::uint64_t most = 0;
  while (b.turn() && b.sched.stats().running > 0) {
    if (b.sched.stats().plans_in_flight > 0) continue;
    // All but the last output are rows.
    EXPECT_EQ(b.sched.stats().blocks_used, static_cast<std::int32_t>(prompt.size() + b.tokens[(sequence_id{1, 0})].size()) - 1);
    ++most;
  }
  EXPECT_GT(most, 5);
  EXPECT_LT(sum(b.sched.stats().drafts.accepted), sum(b.sched.stats().drafts.drafted));
}

// The only block left is for whoever runs to grow into.
TEST_P(Drafts, NobodyIsPreemptedForThem) {
  auto c = config(GetParam(), 2);
  c.device.num_blocks = 26; // of 4: two sequences of 5 + 45 tokens
  c.prefix_caching = false;
  bench b(c);
  for (std::uint64_t id : {1, 2}) ASSERT_FALSE(b.sched.add(request(id, {1, 0, 1, 0, 1}, 46), 0));
  b.run();
  EXPECT_EQ(b.sched.stats().preemptions, 0);
  EXPECT_GT(sum(b.sched.stats().drafts.drafted), 20);
}

TEST_P(Drafts, PrefillsComeFirst) {
  auto c = config(GetParam(), 1);
  c.device.max_batched_tokens = 10;
  bench b(c);
  ASSERT_FALSE(b.sched.add(request(1, {0, 0, 0}, 300), 0));
  for (int i = 0; i < 4; ++i) b.turn();
  ASSERT_FALSE(b.sched.add(request(2, std::vector<token_id>(90, 0), 2), 0));
  int steps = 0;
  while (b.tokens[(sequence_id{2, 0})].empty() && b.turn()) ++steps;
  EXPECT_LE(steps, 90 / (10 - 1) + 2);
}

TEST(Drafting, ADeviceThatDoesNotVerifyIsNotAskedTo) {
  auto c = config(draft_source::ngram, 1);
  c.device.max_verify_tokens = 0;
  bench b(c);
  ASSERT_FALSE(b.sched.add(request(1, {0, 0, 0}, 20), 0));
  b.run();
  EXPECT_EQ(sum(b.sched.stats().drafts.drafted), 0);
  EXPECT_FALSE(b.sched.stats().speculating);
}

// Serves requests on a device that takes `cost(rows)` a step and works through its queue. Nanoseconds until the last end.
using step_time = std::function<std::uint64_t(std::int64_t rows)>;
std::uint64_t serve(const scheduler_config& c, std::uint64_t requests, std::int32_t outputs, const step_time& cost) {
  bench b(c);
  std::uint64_t now = 1, free_at = 1;
  std::deque<std::uint64_t> ready;
  for (std::uint64_t id = 1; id <= requests; ++id) {
    EXPECT_FALSE(b.sched.add(request(id, {static_cast<token_id>(id % 2), 0, 1, 0, 1, 0}, outputs), now));
  }
  while (true) {
    while (auto plan = b.sched.schedule(now)) {
      std::int64_t rows = 0;
      for (const work_item& item : plan->items) rows += item.token_count;
      b.results.push_back(b.dev.run(*plan));
      free_at = std::max(free_at, now) + cost(rows);
      ready.push_back(free_at);
    }
    if (ready.empty()) return now;
    now = ready.front();
    ready.pop_front();
    b.absorb(b.sched.apply(b.results.front(), now));
    b.results.pop_front();
  }
}

double gain(draft_source source, std::int32_t vocab, std::uint64_t requests, const step_time& cost, std::int32_t outputs = 300) {
  const auto with = serve(config(source, vocab, true), requests, outputs, cost);
  const auto without = serve(config(draft_source::none, vocab), requests, outputs, cost);
  return static_cast<double>(without) / static_cast<double>(with);
}

// A step of one row costs as much as one of eight: as where reading the weights takes all the time.
TEST(DraftingPays, WhereRowsAreCheap) {
  const step_time cheap = [](std::int64_t rows) { return static_cast<std::uint64_t>(100'000 + 1'000 * rows); };
  EXPECT_GT(gain(draft_source::ngram, 1, 1, cheap), 4);
  EXPECT_GT(gain(draft_source::model, 1, 1, cheap), 4);
  EXPECT_GT(gain(draft_source::ngram, 2, 1, cheap), 1.3); // every second draft is wrong
  EXPECT_GT(gain(draft_source::model, kVocab, 1, cheap), 1.6);
}

// Where each row costs what a step does, drafts that are often wrong can only lose: a trial now and then is all that is lost.
TEST(DraftingPays, OrIsSwitchedOffWhereRowsAreDear) {
  const step_time dear = [](std::int64_t rows) { return static_cast<std::uint64_t>(1'000 + 100'000 * rows); };
  for (const std::uint64_t requests : {1, 8}) {
    EXPECT_GT(gain(draft_source::ngram, 2, requests, dear), 0.92);
    EXPECT_GT(gain(draft_source::model, kVocab, requests, dear), 0.92);
  }
}

// The price is right for all rows alike and yet every verification is slow: only the comparison of whole steps shows it.
TEST(DraftingPays, OrIsSwitchedOffWhereVerificationsAreSlow) {
  const step_time steep = [](std::int64_t rows) { return static_cast<std::uint64_t>(rows == 1 ? 100'000 : 400'000); };
  EXPECT_GT(gain(draft_source::ngram, 2, 1, steep, 390), 0.75);
  EXPECT_GT(gain(draft_source::model, kVocab, 1, steep, 390), 0.75);
}

// A device of many rows that is full needs no drafts; nearly empty it does.
TEST(DraftingPays, ByTheLoad) {
  const step_time knee = [](std::int64_t rows) {
    return static_cast<std::uint64_t>(100'000 + 50'000 * std::max<std::int64_t>(0, rows - 8));
  };
  EXPECT_GT(gain(draft_source::ngram, 1, 1, knee), 3);
  EXPECT_GT(gain(draft_source::model, kVocab, 8, knee), 0.93);
}

TEST(Acceptance, FollowsWhatWasSeenAtEachPlace) {
  acceptance a(0.6F);
  const double prior = a.rate(0);
  for (int i = 0; i < 50; ++i) a.observe(5, 2); // the third is wrong
  EXPECT_GT(a.rate(0), 0.9);
  EXPECT_GT(a.rate(1), 0.9);
  EXPECT_LT(a.rate(2), 0.1);
  EXPECT_EQ(a.rate(3), prior) << "never reached";
  for (int i = 0; i < 200; ++i) a.fade();
  EXPECT_NEAR(a.rate(2), prior, 0.01);
}

TEST(RunLength, FallsWithThePriceAndGrowsWithAcceptance) {
  const executor_info info = config(draft_source::ngram, 2).device;
  speculation s({draft_source::ngram, kDrafts, true}, info);
  acceptance good(0.6F), bad(0.6F);
  for (int i = 0; i < 50; ++i) {
    good.observe(kDrafts, kDrafts);
    bad.observe(kDrafts, 0);
  }
  const auto at = [&](std::uint64_t per_row) {
    for (std::int64_t rows : {1, 8, 1, 8}) s.observe({rows, 0, 1, 1, false, 1'000'000 + per_row * static_cast<std::uint64_t>(rows)});
    s.set_price(1, 1);
  };
  at(100'000);
  EXPECT_EQ(s.run_length(good, kDrafts), kDrafts);
  EXPECT_EQ(s.run_length(good, 3), 3);
  EXPECT_LT(s.run_length(bad, kDrafts), 2);
  for (int i = 0; i < 200; ++i) at(100'000'000);
  EXPECT_EQ(s.run_length(bad, kDrafts), 0);
  EXPECT_EQ(s.run_length(acceptance(0.6F), kDrafts), 0) << "what is not known to be good is not worth a step";
}

} // namespace
} // namespace troupe
