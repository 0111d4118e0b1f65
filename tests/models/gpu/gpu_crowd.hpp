// Sequences that run at random beside each other: cut, paused, preempted and replayed, with drafts to verify. What each of them was told
// is kept bit for bit, so that one that ran alone can be compared.
#pragma once

#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/models/executor_testing.hpp"

namespace troupe::test {

struct crowd_member {
  tokens prompt;
  sampling_params sampling; // top_logprobs is set
};

// By position, of the token behind it: logprobs of it and of the best ones.
struct member_report {
  tokens drawn;
  std::map<std::int32_t, token_scores> scores;
};

class crowd {
 public:
  // Each of `members` shall draw `count` tokens; they take slots 0, 1, ..
  crowd(step_executor& executor, const std::vector<crowd_member>& members, std::size_t count, std::uint32_t seed)
      : members_(members),
        count_(count),
        budget_(executor.info().max_batched_tokens),
        random_(seed),
        writer_(executor, seed),
        state_(members.size()),
        reports_(members.size()) {
    static epoch_number epoch = 1'000'000; // beyond those of other writers on the same executor
    writer_.plan.epoch = ++epoch;
  }

  // One after the other, each prompt in as few steps as there can be and then token by token.
  std::vector<member_report> alone() {
    for (std::size_t i = 0; i < members_.size(); ++i) {
      while (!done(i) && !broken_) {
        if (!state_[i].open) open(i);
        state_[i].filled < state_[i].text ? fill(i, std::min(state_[i].text - state_[i].filled, budget_)) : decode(i);
        take();
      }
      writer_.close(slot_of(i));
      writer_.run();
    }
    return reports_;
  }

  // `right`: what they draw alone, for drafts. contradictions() counts what was told otherwise before of the same position.
  std::vector<member_report> together(const std::vector<member_report>& right) {
    std::vector<std::size_t> order(members_.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    for (bool all = false; !all && !broken_;) {
      std::shuffle(order.begin(), order.end(), random_);
      all = true;
      std::int32_t left = budget_;
      for (const std::size_t i : order) {
        if (done(i)) continue;
        all = false;
        if (left > 0) left -= advance(i, left, right[i].drawn);
      }
      take();
    }
    for (std::size_t i = 0; i < members_.size(); ++i) writer_.close(slot_of(i));
    writer_.run();
    return reports_;
  }

  int replays() const { return replays_; }
  int contradictions() const { return contradictions_; }

 private:
  struct progress {
    bool open = false;
    std::int32_t text = 0;   // tokens that are there as a prompt
    std::int32_t filled = 0; // rows in the cache
  };

  static slot_id slot_of(std::size_t member) { return static_cast<slot_id>(member); }
  bool done(std::size_t i) const { return reports_[i].drawn.size() >= count_; }
  std::int32_t one_of(std::int32_t low, std::int32_t high) { return std::uniform_int_distribution<std::int32_t>(low, high)(random_); }
  bool happens(std::int32_t percent) { return one_of(1, 100) <= percent; }

  token_id token_at(std::size_t i, std::int32_t position) const {
    const auto at = static_cast<std::size_t>(position);
    const tokens& prompt = members_[i].prompt;
    return at < prompt.size() ? prompt[at] : reports_[i].drawn[at - prompt.size()];
  }

  void open(std::size_t i) {
    progress& p = state_[i];
    p = {true, static_cast<std::int32_t>(members_[i].prompt.size() + reports_[i].drawn.size()), 0};
    constexpr std::int32_t drafts = 8;
    writer_.open(slot_of(i), p.text, members_[i].sampling, static_cast<std::int32_t>(members_[i].prompt.size() + count_) + drafts);
  }

  void fill(std::size_t i, std::int32_t rows) {
    progress& p = state_[i];
    const bool last = p.filled + rows == p.text;
    tokens some;
    for (std::int32_t at = p.filled; at < p.filled + rows + (last ? 0 : 1); ++at) some.push_back(token_at(i, at));
    writer_.prefill(slot_of(i), p.filled, some, last, 4, !last);
    p.filled += rows;
  }

  void decode(std::size_t i) { writer_.decode(slot_of(i), state_[i].filled++); }

  // Returns the rows taken, at most `most`.
  std::int32_t advance(std::size_t i, std::int32_t most, const tokens& right) {
    progress& p = state_[i];
    if (happens(15)) return 0;
    if (p.open && happens(4)) {
      writer_.close(slot_of(i));
      p.open = false;
      ++replays_;
    }
    if (!p.open) open(i);
    if (p.filled < p.text) {
      const std::int32_t rows = one_of(1, std::min(p.text - p.filled, most));
      fill(i, rows);
      return rows;
    }
    if (!happens(20) || most < 5) {
      decode(i);
      return 1;
    }
    const std::size_t at = reports_[i].drawn.size(), ahead = static_cast<std::size_t>(one_of(1, 4));
    tokens drafts = part_of(right, std::min(at, right.size()), std::min(at + ahead, right.size()));
    if (!drafts.empty() && happens(40)) drafts.back() += drafts.back() == 0 ? 1 : -1;
    writer_.verify(slot_of(i), p.filled, drafts);
    return static_cast<std::int32_t>(drafts.size()) + 1;
  }

  void tell(std::size_t i, std::int32_t position, const token_scores& scores) {
    const auto [known, is_new] = reports_[i].scores.emplace(position, scores);
    if (!is_new && !(known->second == scores)) ++contradictions_;
  }

  // Runs the plan and takes in what comes of it.
  void take() {
    const std::vector<work_item> items = writer_.plan.items;
    if (items.empty()) return;
    const std::vector<slot_output> outputs = writer_.run();
    broken_ = broken_ || outputs.size() != items.size();
    if (broken_) return;
    for (std::size_t k = 0; k < items.size(); ++k) {
      const work_item& item = items[k];
      const auto i = static_cast<std::size_t>(item.slot);
      std::int32_t position = item.first_position;
      for (const token_scores& scores : outputs[k].prompt_scores) tell(i, position++, scores);
      position = static_cast<std::int32_t>(members_[i].prompt.size() + reports_[i].drawn.size()) - 1;
      for (std::size_t n = 0; n < outputs[k].tokens.size(); ++n) {
        tell(i, position++, outputs[k].scores.at(n));
        reports_[i].drawn.push_back(outputs[k].tokens[n]);
      }
      if (item.kind == work_kind::verify) state_[i].filled += static_cast<std::int32_t>(outputs[k].tokens.size());
      broken_ = broken_ || (item.sample && outputs[k].tokens.empty());
    }
  }

  const std::vector<crowd_member>& members_;
  std::size_t count_;
  std::int32_t budget_;
  std::mt19937 random_;
  plan_writer writer_;
  std::vector<progress> state_;
  std::vector<member_report> reports_;
  int replays_ = 0, contradictions_ = 0;
  bool broken_ = false; // a sequence got no token: nothing goes on
};

// Prompts of 1 to `longest` ids below `vocab`, every other one drawn from at random by a seed of its own.
inline std::vector<crowd_member> random_members(std::size_t count, std::int32_t longest, token_id vocab, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<crowd_member> members(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto length = std::uniform_int_distribution<std::int32_t>(1, longest)(random);
    for (std::int32_t k = 0; k < length; ++k) members[i].prompt.push_back(static_cast<token_id>(random() % static_cast<unsigned>(vocab)));
    members[i].sampling = greedy();
    members[i].sampling.top_logprobs = 4;
    if (i % 2 == 1) {
      members[i].sampling.temperature = 1;
      members[i].sampling.seed = seed + i;
    }
  }
  return members;
}

// Bit for bit what was told of each, up to the shorter text of the two.
inline void expect_same(const std::vector<member_report>& got, const std::vector<member_report>& right) {
  ASSERT_EQ(got.size(), right.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    const std::size_t both = std::min(got[i].drawn.size(), right[i].drawn.size()); // drafts may bring more than asked for
    ASSERT_EQ(part_of(got[i].drawn, 0, both), part_of(right[i].drawn, 0, both)) << "sequence " << i;
    std::size_t compared = 0;
    for (const auto& [position, scores] : right[i].scores) {
      const auto found = got[i].scores.find(position);
      if (found == got[i].scores.end()) continue;
      ++compared;
      ASSERT_EQ(found->second.chosen.token, scores.chosen.token) << "sequence " << i << ", behind position " << position;
      ASSERT_EQ(found->second.chosen.logprob, scores.chosen.logprob) << "sequence " << i << ", behind position " << position;
      ASSERT_EQ(found->second.top, scores.top) << "sequence " << i << ", behind position " << position;
    }
    ASSERT_EQ(compared, right[i].scores.size());
  }
}

} // namespace troupe::test
