#include "device/cpu/thread_pool.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <vector>

namespace troupe::cpu {
namespace {

// Counts how often each index was visited, without atomics: two threads on one index are a data race for the sanitizer to find.
void expect_each_index_once(thread_pool& pool, std::int64_t count, std::int64_t grain) {
  std::vector<int> visits(static_cast<std::size_t>(count), 0);
  std::atomic<bool> aligned{true};
  pool.run(count, grain, [&](std::int64_t begin, std::int64_t end) {
    if (begin % grain != 0 || (end % grain != 0 && end != count) || begin >= end) aligned = false;
    for (std::int64_t i = begin; i < end; ++i) ++visits[static_cast<std::size_t>(i)];
  });
  EXPECT_TRUE(std::all_of(visits.begin(), visits.end(), [](int n) { return n == 1; })) << count << " by " << grain;
  EXPECT_TRUE(aligned) << count << " by " << grain;
}

TEST(ThreadPool, EveryIndexIsVisitedOnceWhateverTheCountGrainAndThreads) {
  for (int threads : {1, 2, 3, 8}) {
    thread_pool pool(threads);
    EXPECT_EQ(pool.size(), threads);
    for (std::int64_t count : {1, 2, 3, 7, 16, 31, 100, 1000, 4097}) {
      for (std::int64_t grain : {1, 2, 5, 16, 4096}) expect_each_index_once(pool, count, grain);
    }
  }
}

TEST(ThreadPool, NothingToDoCallsNothing) {
  thread_pool pool(2);
  bool called = false;
  pool.run(0, 1, [&](std::int64_t, std::int64_t) { called = true; });
  EXPECT_FALSE(called);
}

TEST(ThreadPool, AThreadCountBelowOneIsTheCallerAlone) {
  EXPECT_EQ(thread_pool(0).size(), 1);
  EXPECT_EQ(thread_pool(-3).size(), 1);
}

TEST(ThreadPool, WritesOfALoopAreVisibleToTheNextOneAndToTheCaller) {
  thread_pool pool(4);
  std::vector<std::int64_t> values(257, 0);
  for (int round = 0; round < 3000; ++round) {
    pool.run(257, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) values[static_cast<std::size_t>(i)] += i;
    });
  }
  for (std::int64_t i = 0; i < 257; ++i) ASSERT_EQ(values[static_cast<std::size_t>(i)], 3000 * i);
}

TEST(ThreadPool, WorkersHelpEvenAfterTheySlept) {
  thread_pool pool(2);
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2)); // far beyond the spin time
    std::atomic<int> inside{0};
    std::atomic<bool> met{false};
    // Each chunk waits until another thread is inside one too: with the caller alone this runs into the deadline.
    pool.run(2, 1, [&](std::int64_t, std::int64_t) {
      ++inside;
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
      while (inside < 2 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
      if (inside == 2) met = true;
    });
    ASSERT_TRUE(met) << "round " << round;
  }
}

TEST(ThreadPool, LoopsMayComeFromDifferentThreadsInTurn) {
  thread_pool pool(3);
  std::atomic<std::int64_t> sum{0};
  for (int i = 0; i < 50; ++i) {
    std::thread([&] { pool.run(100, 1, [&](std::int64_t begin, std::int64_t end) { sum += end - begin; }); }).join();
  }
  EXPECT_EQ(sum, 5000);
}

TEST(ThreadPool, AnIdlePoolUsesNoProcessorTime) {
  thread_pool pool(4);
  pool.run(64, 1, [](std::int64_t, std::int64_t) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(20)); // let the workers fall asleep
  const std::clock_t before = std::clock();                   // of all threads of the process
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const double seconds = static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
  EXPECT_LT(seconds, 0.05);
}

TEST(ThreadPool, AnExceptionOfAWorkerOrTheCallerComesOutOfTheLoopAndThePoolServesOn) {
  for (const bool from_caller : {true, false}) {
    thread_pool pool(3);
    const std::thread::id caller = std::this_thread::get_id();
    for (int round = 0; round < 20; ++round) {
      std::atomic<int> run{0};
      std::atomic<bool> thrown{false};
      const auto body = [&](std::int64_t begin, std::int64_t end) {
        run += static_cast<int>(end - begin);
        const bool mine = (std::this_thread::get_id() == caller) == from_caller;
        if (mine && !thrown.exchange(true)) throw std::runtime_error("body");
        if (mine) return;
        // Leaves the first chunk of the other side time to come.
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
        while (!thrown && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
      };
      EXPECT_THROW(pool.run(64, 1, body), std::runtime_error);
      EXPECT_EQ(run, 64);
      expect_each_index_once(pool, 100, 1);
    }
  }
}

TEST(ThreadPool, AnExceptionOfALoopTooSmallToShareComesOutToo) {
  thread_pool pool(2);
  EXPECT_THROW(pool.run(1, 1, [](std::int64_t, std::int64_t) { throw std::runtime_error("body"); }), std::runtime_error);
  expect_each_index_once(pool, 10, 1);
}

// Ends with 0 when more threads than the address space has room for are refused by an exception.
[[noreturn]] void start_too_many_threads() {
  rlimit room{};
  getrlimit(RLIMIT_AS, &room);
  room.rlim_cur = rlim_t{1} << 30;
  setrlimit(RLIMIT_AS, &room);
  try {
    thread_pool pool(20'000);
  } catch (const std::exception&) {
    std::_Exit(0);
  }
  std::_Exit(1);
}

TEST(ThreadPoolDeathTest, ThreadsThatTheSystemRefusesAreAnExceptionAndNotTheEndOfTheProcess) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers map more address space than the limit of this test";
#endif
  EXPECT_EXIT(start_too_many_threads(), ::testing::ExitedWithCode(0), "");
}

TEST(ThreadPool, ManyPoolsComeAndGoWithoutWork) {
  for (int i = 0; i < 50; ++i) thread_pool pool(3);
}

} // namespace
} // namespace troupe::cpu
