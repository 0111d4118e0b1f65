#include "core/process_clock.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "core/clock.hpp"

namespace troupe {
namespace {

constexpr std::uint64_t tick_ns = 10'000'000;

TEST(process_clock, a_process_began_before_now_and_stays_that_old) {
  const std::uint64_t begun = process_begun_ns();
  EXPECT_LE(begun, now_ns());
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  const std::uint64_t again = process_begun_ns();
  EXPECT_LT(again > begun ? again - begun : begun - again, tick_ns / 10);
}

TEST(process_clock, a_child_began_when_it_was_forked) {
  std::this_thread::sleep_for(std::chrono::milliseconds(50)); // this process is older by far
  const std::uint64_t forked = now_ns();
  const pid_t child = fork();
  if (child == 0) {
    const std::uint64_t begun = process_begun_ns();
    _exit(begun + 2 * tick_ns > forked && begun <= now_ns() ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

} // namespace
} // namespace troupe
