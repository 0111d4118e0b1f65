// A device is lost and the next one has its blocks: sequences go on from their last full block, and every token is the one of before.
#include "simulation/random.hpp"
#include "tests/scheduler/scheduler_testing.hpp"

namespace troupe {
namespace {

using test::bench;
using test::reference;
using test::request;

std::vector<token_id> words(std::int32_t count, std::int32_t first) {
  std::vector<token_id> out;
  for (std::int32_t i = 0; i < count; ++i) out.push_back((first * 31 + i * 7) % test::kVocab);
  return out;
}

TEST(KeptKv, SequencesGoOnFromTheirLastFullBlock) {
  bench b(test::device(64, 4, 4, 32));
  for (std::uint64_t id = 1; id <= 3; ++id) ASSERT_FALSE(b.sched.add(request(id, words(30, static_cast<std::int32_t>(id)), 40), b.now));
  for (int i = 0; i < 12; ++i) b.turn();
  const auto before = b.rows;
  const auto confirmed = b.tokens[{1, 0}].size();
  ASSERT_GT(confirmed, 4U);
  b.lose_but_kv();
  EXPECT_GT(b.sched.stats().blocks_cached, 0);
  b.turn();
  EXPECT_EQ(b.sched.stats().running, 3) << "all are back with the first plan";
  EXPECT_LE(b.rows - before, 3 * (4 + 2)) << "a block each at most, and the plan ahead";
  b.run();
  for (std::uint64_t id = 1; id <= 3; ++id) EXPECT_EQ((b.tokens[{id, 0}]), reference(words(30, static_cast<std::int32_t>(id)), 40));
}

TEST(KeptKv, WhatIsNotThereAfterAllIsComputedAgain) {
  bench b(test::device(64, 4, 4, 32));
  ASSERT_FALSE(b.sched.add(request(1, words(30, 1), 40), b.now));
  for (int i = 0; i < 12; ++i) b.turn();
  b.absorb(b.sched.device_lost(++b.now, loss_cause::killed, true));
  b.results.clear();
  b.dev = test::hash_device(b.info);
  b.sched.forget_cache();
  EXPECT_EQ(b.sched.stats().blocks_cached, 0);
  b.run();
  EXPECT_EQ((b.tokens[{1, 0}]), reference(words(30, 1), 40));
}

TEST(KeptKv, AfterAFaultNothingStays) {
  bench b(test::device(64, 4, 4, 32));
  ASSERT_FALSE(b.sched.add(request(1, words(30, 1), 40), b.now));
  for (int i = 0; i < 12; ++i) b.turn();
  b.absorb(b.sched.device_lost(++b.now, loss_cause::fault, true));
  EXPECT_EQ(b.sched.stats().blocks_cached, 0);
}

TEST(KeptKv, WithoutAPrefixIndexNothingIsFound) {
  scheduler_config config{test::device(64, 4, 4, 32), 1000, 2};
  config.prefix_caching = false;
  bench b(config);
  ASSERT_FALSE(b.sched.add(request(1, words(30, 1), 40), b.now));
  for (int i = 0; i < 12; ++i) b.turn();
  b.lose_but_kv();
  b.run();
  EXPECT_EQ((b.tokens[{1, 0}]), reference(words(30, 1), 40));
}

// Choices that share blocks and copy them, penalties that need every row, scores, drafts of both kinds, pools too small for all: lost at
// random moments, with plans out and without.
TEST(KeptKv, RandomLossesChangeNoToken) {
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    simulation::random_source random(seed);
    executor_info info = test::device(random.between(20, 80), random.between(1, 6), random.between(1, 6), random.between(8, 40), 96);
    info.vocab_size = random.one_in(2) ? 3 : test::kVocab;
    info.max_verify_tokens = info.max_proposals = 5;
    scheduler_config config{info, 1000, random.between(1, 3)};
    config.speculation = {static_cast<draft_source>(random.between(0, 2)), 4, false};
    if (info.num_blocks * info.block_size < 96) continue;
    bench b(config);
    std::map<sequence_id, std::vector<token_id>> expected;
    for (std::uint64_t id = 1; id <= 6; ++id) {
      std::vector<token_id> prompt = words(random.between(1, 40), random.one_in(3) ? 1 : static_cast<std::int32_t>(id));
      for (token_id& t : prompt) t %= info.vocab_size;
      const std::int32_t outputs = random.between(1, 40);
      const bool penalties = random.one_in(4);
      for (std::int32_t choice = 0; choice < (random.one_in(3) ? 3 : 1); ++choice) {
        sequence_request r = request(id, prompt, outputs);
        r.id.index = choice;
        if (choice > 0) r.same_prompt_as = 0;
        if (penalties) r.sampling.repetition_penalty = 1.1F; // the hash device draws as ever, but must be given every row
        expected[r.id] = reference(prompt, outputs, 0, info.vocab_size);
        ASSERT_FALSE(b.sched.add(std::move(r), b.now));
      }
    }
    for (int losses = 0; losses < 6; ++losses) {
      for (std::int32_t turns = random.between(1, 12); turns > 0; --turns) b.turn();
      while (random.one_in(2)) {
        if (auto plan = b.sched.schedule(++b.now)) b.results.push_back(b.dev.run(*plan));
      }
      random.one_in(4) ? b.lose(loss_cause::killed) : b.lose_but_kv();
    }
    b.run();
    for (const auto& [id, tokens] : expected) {
      const bool quarantined = b.ends.at(id).failure.has_value(); // lost eight times without a token
      EXPECT_TRUE(quarantined || b.tokens[id] == tokens) << "seed " << seed << ", request " << id.request;
    }
    if (HasFailure()) return;
  }
}

} // namespace
} // namespace troupe
