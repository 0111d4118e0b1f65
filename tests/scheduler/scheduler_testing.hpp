// A scheduler in front of the hash device, and the streams that must come out.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <vector>

#include "scheduler/scheduler.hpp"
#include "tests/scheduler/hash_device.hpp"

namespace troupe::test {

inline constexpr std::int32_t kVocab = 97;

inline executor_info device(std::int32_t blocks = 64, std::int32_t block_size = 4, std::int32_t seqs = 8, std::int32_t budget = 16,
                            std::int32_t context = 128) {
  return {block_size, blocks, seqs, budget, context, kVocab};
}

inline sequence_request request(std::uint64_t id, std::vector<token_id> prompt, std::int32_t max_tokens) {
  sequence_request r;
  r.id = {id, 0};
  r.prompt = std::move(prompt);
  r.stop.max_tokens = max_tokens;
  r.arrival_ns = id;
  return r;
}

// Few letters make streams that repeat themselves.
inline std::vector<token_id> reference(std::vector<token_id> prompt, std::int32_t count, std::uint64_t seed = 0,
                                       std::int32_t vocab = kVocab) {
  std::vector<token_id> out;
  for (std::int32_t i = 0; i < count; ++i) {
    out.push_back(next_token(prompt, vocab, seed));
    prompt.push_back(out.back());
  }
  return out;
}

// A scheduler and its device, with results held back as a real device holds them.
struct bench {
  explicit bench(executor_info limits, std::int32_t ahead = 2, std::int32_t max_waiting = 1000)
      : bench(scheduler_config{limits, max_waiting, ahead}) {}
  explicit bench(const scheduler_config& config) : info(config.device), sched(config), dev(config.device) {}

  // One turn: plan all that may be planned, then absorb the oldest result. False when nothing is left to do.
  bool turn() {
    while (auto plan = sched.schedule(++now)) {
      check_blocks();
      for (const work_item& item : plan->items) rows += item.token_count;
      copies += plan->copies.size();
      results.push_back(dev.run(*plan));
    }
    if (results.empty()) return false;
    absorb(sched.apply(results.front(), ++now));
    results.pop_front();
    check_blocks();
    return true;
  }
  void check_blocks() const {
    const scheduler_stats s = sched.stats();
    ASSERT_EQ(s.blocks_free + s.blocks_used + s.blocks_cached, s.blocks_total);
    ASSERT_GE(std::min({s.blocks_free, s.blocks_used, s.blocks_cached}), 0);
    if (s.running == 0) {
      ASSERT_EQ(s.blocks_used, 0);
    }
  }
  void absorb(const std::vector<sequence_update>& updates) {
    for (const sequence_update& u : updates) {
      auto& text = tokens[u.id];
      text.insert(text.end(), u.tokens.begin(), u.tokens.end());
      for (const token_scores& score : u.prompt_scores) scores[u.id].push_back(score.chosen);
      if (!u.finish) continue;
      EXPECT_TRUE(ends.emplace(u.id, u).second) << "ended twice";
    }
  }
  void lose(loss_cause cause) {
    absorb(sched.device_lost(++now, cause));
    results.clear();
    dev = hash_device(info);
    check_blocks();
  }
  // The next device finds the blocks of this one, what was never acknowledged included.
  void lose_but_kv() {
    absorb(sched.device_lost(++now, loss_cause::killed, true));
    results.clear();
    hash_device next(info);
    next.adopt_kv(dev);
    dev = std::move(next);
    check_blocks();
  }
  void run() {
    for (int i = 0; turn(); ++i) ASSERT_LT(i, 100000) << "no end";
    EXPECT_EQ(sched.stats().running + sched.stats().waiting, 0);
  }

  executor_info info;
  scheduler sched;
  hash_device dev;
  std::deque<step_result> results;
  std::map<sequence_id, std::vector<token_id>> tokens;
  std::map<sequence_id, std::vector<scored_token>> scores; // of the prompt, from position 1 on
  std::map<sequence_id, sequence_update> ends;
  std::int64_t rows = 0; // computed in all
  std::size_t copies = 0;
  std::uint64_t now = 1000;
};

} // namespace troupe::test
