#include "scheduler/ngram_index.hpp"

#include <gtest/gtest.h>

#include <random>

namespace troupe {
namespace {

using tokens = std::vector<token_id>;

// What follows the last occurrence of the last four tokens, or else of the last two, worked out by looking everywhere.
tokens searched(const tokens& history, std::int32_t count) {
  const auto size = static_cast<std::int32_t>(history.size());
  for (const std::int32_t length : {4, 2}) {
    for (std::int32_t follower = size - 1; follower >= length; --follower) {
      if (!std::equal(history.end() - length, history.end(), history.begin() + follower - length)) continue;
      tokens all = history;
      for (std::int32_t i = 0; i < count; ++i) all.push_back(all[static_cast<std::size_t>(follower + i)]);
      return {all.begin() + size, all.end()};
    }
  }
  return {};
}

tokens proposed(const ngram_index& index, const token_view& view, std::int32_t count) {
  tokens drafts{-5}; // what is there stays
  index.propose(view, count, drafts);
  EXPECT_EQ(drafts.front(), -5);
  return {drafts.begin() + 1, drafts.end()};
}

tokens propose(const tokens& history, std::int32_t count) {
  ngram_index index;
  const token_view view{history, {}};
  index.extend(view, view.size(), 1 << 14); // room for every n-gram
  return proposed(index, view, count);
}

TEST(NgramIndex, ProposesWhatFollowedLast) {
  EXPECT_EQ(propose({1, 2, 7, 8, 1, 2, 9, 8, 1, 2}, 3), (tokens{9, 8, 1}));
  EXPECT_EQ(propose({1, 2, 3, 4, 5, 0, 3, 4, 6, 1, 2, 3, 4}, 2), (tokens{5, 0})); // four before two
  EXPECT_EQ(propose({1, 2, 3, 4, 5}, 3), tokens{});
  EXPECT_EQ(propose({1}, 3), tokens{});
}

TEST(NgramIndex, ARunThatReachesTheEndGoesOnWithItself) {
  EXPECT_EQ(propose({5, 5, 5}, 4), (tokens{5, 5, 5, 5}));
  EXPECT_EQ(propose({9, 1, 2, 3, 1, 2}, 7), (tokens{3, 1, 2, 3, 1, 2, 3}));
}

// Whatever the chunks that it grows by, and wherever the prompt ends.
TEST(NgramIndex, EqualsASearchOfTheWholeHistory) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    const auto letters = 2 + random() % 5;
    tokens prompt(1 + random() % 60), outputs;
    for (token_id& t : prompt) t = static_cast<token_id>(random() % letters);
    ngram_index index; // room for every n-gram: only equal hashes make one take the place of another
    int found = 0, missed = 0;
    for (int step = 0; step < 40; ++step) {
      const token_view view{prompt, outputs};
      index.extend(view, 1 << 20, 1 << 14);
      tokens all = prompt;
      all.insert(all.end(), outputs.begin(), outputs.end());
      const tokens expected = searched(all, 5);
      const tokens got = proposed(index, view, 5);
      ++(got == expected ? found : missed);
      for (auto more = random() % 3; more > 0; --more) outputs.push_back(static_cast<token_id>(random() % letters));
    }
    EXPECT_LE(missed, 4) << "round " << round;
    EXPECT_GT(found, 30);
  }
}

// A long history comes in over several calls, each of them bounded; before its end is reached nothing is proposed.
TEST(NgramIndex, CatchesUpInBoundedSteps) {
  tokens history;
  for (int i = 0; i < 1000; ++i) history.push_back(i % 10);
  const token_view view{history, {}};
  ngram_index index;
  for (int call = 0; call < 9; ++call) {
    index.extend(view, 100, 2000);
    EXPECT_FALSE(index.matches());
  }
  index.extend(view, 100, 2000);
  EXPECT_EQ(proposed(index, view, 4), (tokens{0, 1, 2, 3}));
}

// However full: what it proposes did follow the last two tokens somewhere.
TEST(NgramIndex, AFullTableForgetsButDoesNotMakeUp) {
  std::mt19937 random(9);
  tokens history(200'000);
  for (token_id& t : history) t = static_cast<token_id>(random() % 300);
  ngram_index index;
  const token_view view{history, {}};
  index.extend(view, view.size(), view.size());
  int matches = 0;
  for (int i = 0; i < 200; ++i) {
    history.push_back(static_cast<token_id>(random() % 300));
    const token_view grown{history, {}};
    index.extend(grown, 1, grown.size());
    if (!index.matches()) continue;
    ++matches;
    const token_id next = proposed(index, grown, 1).front();
    const tokens wanted{history[history.size() - 2], history.back(), next};
    EXPECT_NE(std::search(history.begin(), history.end(), wanted.begin(), wanted.end()), history.end());
  }
  EXPECT_GT(matches, 20);
}

} // namespace
} // namespace troupe
