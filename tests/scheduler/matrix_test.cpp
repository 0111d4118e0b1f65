// Everything at once: cache on and off, chunk sizes, pools that force preemption, several choices, scores, penalties, cancels, lost
// devices, and drafts of every kind. Whatever happens, each stream is the reference's.
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "kvcache/block_pool.hpp"
#include "tests/scheduler/scheduler_testing.hpp"

namespace troupe {
namespace {

using namespace test;

struct scenario {
  explicit scenario(std::uint32_t seed) : random(seed) {}

  std::int32_t pick(std::int32_t low, std::int32_t high) { return std::uniform_int_distribution<std::int32_t>(low, high)(random); }
  bool one_in(std::int32_t n) { return pick(1, n) == 1; }

  scheduler_config config() {
    scheduler_config c;
    const std::int32_t block_size = 1 << pick(0, 4);
    const std::int32_t context = 64;
    c.device = {block_size, blocks_for(context, block_size) * pick(4, 16) / 4, pick(1, 6), 0, context, kVocab};
    c.device.max_batched_tokens = one_in(4) ? 1024 : c.device.max_num_seqs + pick(0, 24);
    c.stages = one_in(2) ? 1 : pick(2, 4);
    c.plans_in_flight = c.stages == 1 ? pick(1, 3) : c.stages + pick(0, 2);
    c.prefix_caching = !one_in(4);
    if (one_in(3)) c.hash = [](auto, auto, auto) { return std::uint64_t{1}; };
    if (one_in(2)) speculate(c);
    return c;
  }

  void speculate(scheduler_config& c) {
    c.speculation = {one_in(2) ? draft_source::ngram : draft_source::model, pick(1, 9), one_in(3)};
    c.device.max_verify_tokens = pick(1, 8);
    c.device.max_proposals = pick(1, 8);
    c.device.vocab_size = one_in(3) ? kVocab : pick(2, 3);
  }

  // Prompts of few letters and shared beginnings: hits, partial hits, and equal blocks in different places.
  std::vector<sequence_request> next_request(std::uint64_t id) {
    std::vector<token_id> prompt(static_cast<std::size_t>(pick(1, 40)), one_in(2) ? 1 : 2);
    for (std::size_t i = prompt.size() / 2; i < prompt.size(); ++i) prompt[i] = pick(1, 3);
    std::vector<sequence_request> all;
    const std::int32_t n = one_in(3) ? pick(2, 4) : 1;
    const bool scores = one_in(5), penalty = one_in(6), salted = one_in(5);
    for (std::int32_t i = 0; i < n; ++i) {
      auto r = request(id, prompt, pick(0, 20));
      r.id.index = i;
      r.priority = pick(0, 1);
      r.sampling.seed = static_cast<std::uint64_t>(i);
      if (i > 0) r.same_prompt_as = 0;
      if (i == 0 && scores) r.prompt_logprobs = 0;
      if (penalty) r.sampling.repetition_penalty = 1.5F;
      if (salted) r.cache_salt = "x";
      all.push_back(std::move(r));
    }
    return all;
  }

  std::mt19937 random;
};

struct drafts_seen {
  std::uint64_t drafted[3] = {}, accepted[3] = {}; // by source
};

void run_scenario(std::uint32_t seed, drafts_seen& seen) {
  scenario s(seed);
  const scheduler_config config = s.config();
  bench b(config);
  std::map<sequence_id, sequence_request> accepted;
  int losses = 0;
  for (std::uint64_t id = 1; id <= 25; ++id) {
    for (const sequence_request& r : s.next_request(id)) {
      if (!b.sched.add(r, 0)) accepted.emplace(r.id, r);
    }
    for (std::int32_t i = s.pick(0, 6); i > 0; --i) b.turn();
    if (s.one_in(8) && ++losses <= 4) b.lose(loss_cause::killed); // the fifth in a row would blame somebody
    if (!accepted.empty() && s.one_in(5)) {
      auto victim = std::next(accepted.begin(), s.pick(0, static_cast<std::int32_t>(accepted.size()) - 1));
      if (b.sched.remove(victim->first)) accepted.erase(victim);
    }
    b.check_blocks();
  }
  b.run();
  for (const auto& [id, r] : accepted) {
    EXPECT_EQ(b.tokens[id], reference(r.prompt, r.stop.max_tokens, r.sampling.seed, config.device.vocab_size))
        << "seed " << seed << ": " << id.request << "." << id.index;
    if (r.prompt_logprobs) {
      EXPECT_EQ(b.scores[id].size(), r.prompt.size() - 1) << "seed " << seed;
    }
    EXPECT_TRUE(b.ends.contains(id)) << "seed " << seed;
  }
  const auto source = static_cast<std::size_t>(config.speculation.source);
  const draft_counts counts = b.sched.stats().drafts;
  seen.drafted[source] += std::accumulate(counts.drafted.begin(), counts.drafted.end(), std::uint64_t{0});
  seen.accepted[source] += std::accumulate(counts.accepted.begin(), counts.accepted.end(), std::uint64_t{0});
}

TEST(SchedulerMatrix, EveryStreamIsTheReferences) {
  drafts_seen seen;
  for (std::uint32_t seed = 1; seed <= 2500 && !::testing::Test::HasFailure(); ++seed) run_scenario(seed, seen);
  EXPECT_EQ(seen.drafted[0], 0);
  for (const std::size_t source : {1, 2}) {
    EXPECT_GT(seen.accepted[source], 1000);
    EXPECT_GT(seen.drafted[source], seen.accepted[source]);
  }
}

} // namespace
} // namespace troupe
