#include "models/start_times.hpp"

#include <gtest/gtest.h>

#include <thread>

namespace troupe {
namespace {

TEST(start_times, seconds_from_the_beginning_in_the_order_of_time) {
  start_times times(1'000'000'000);
  times.reached("joined", 2'250'000'000); // by a thread that says so first
  times.reached("context", 1'120'000'000);
  times.reached("weights", 1'500'400'000);
  EXPECT_EQ(times.text(), "context 0.120 s, weights 0.500 s, joined 1.250 s");
}

TEST(start_times, nothing_was_reached_before_the_beginning) {
  start_times times(1'000'000'000);
  EXPECT_EQ(times.text(), "");
  times.reached("process", 999'000'000);
  EXPECT_EQ(times.text(), "process 0.000 s");
}

TEST(start_times, threads_note_side_by_side) {
  start_times times;
  {
    std::jthread other([&] {
      for (int i = 0; i < 100; ++i) times.reached("b");
    });
    for (int i = 0; i < 100; ++i) times.reached("a");
  }
  const std::string text = times.text();
  EXPECT_EQ(std::count(text.begin(), text.end(), ','), 199);
}

} // namespace
} // namespace troupe
