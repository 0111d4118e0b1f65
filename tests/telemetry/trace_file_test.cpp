#include "telemetry/trace_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <new>
#include <random>
#include <thread>
#include <vector>

#include "core/json.hpp"

namespace troupe::telemetry {
namespace {

class trace_file_test : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    path_ = std::filesystem::temp_directory_path() / (std::string("trace_") + info->name() + std::to_string(::getpid()) + ".json");
  }
  void TearDown() override { std::filesystem::remove(path_); }

  // Parses the whole file strictly.
  value parsed() const {
    std::ifstream file(path_, std::ios::binary);
    auto out = json::parse(std::string(std::istreambuf_iterator<char>(file), {}));
    EXPECT_TRUE(out) << (out ? "" : out.failure().message);
    return out ? *out : value();
  }
  // Events that are not the tracks' names.
  std::vector<value> events() const {
    std::vector<value> out;
    const value whole = parsed();
    for (const value& e : whole.find("traceEvents")->as_array()) {
      if (e.find("ph")->as_string() != "M") out.push_back(e);
    }
    return out;
  }

  std::filesystem::path path_;
};

std::uint64_t now() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count());
}

TEST_F(trace_file_test, a_fresh_file_is_whole_and_names_its_tracks) {
  const trace_file trace(path_);
  EXPECT_GE(parsed().find("traceEvents")->as_array().size(), 6U);
}

TEST_F(trace_file_test, events_come_out_as_the_format_wants_them) {
  {
    trace_file trace(path_, [](std::uint64_t dropped) { return "{\"dropped\":" + std::to_string(dropped) + "}"; });
    const std::uint64_t start = now() + 5'000'000;
    trace.span({trace_track::compute}, "decode", start, start + 1'234'567, {{"step", 7}});
    trace.phase(3, "queued", true, start);
    trace.phase(3, "queued", false, start + 1000);
    trace.mark("device lost", start);
  }
  const auto all = events();
  ASSERT_EQ(all.size(), 4U);
  EXPECT_EQ(all[0].find("ph")->as_string(), "X");
  EXPECT_DOUBLE_EQ(all[0].find("dur")->as_double(), 1234.567);
  EXPECT_EQ(all[0].find("args")->find("step")->as_int(), 7);
  EXPECT_EQ(all[1].find("ph")->as_string(), "b");
  EXPECT_EQ(all[2].find("ph")->as_string(), "e");
  EXPECT_EQ(all[1].find("id")->as_string(), all[2].find("id")->as_string());
  EXPECT_NEAR(all[2].find("ts")->as_double() - all[1].find("ts")->as_double(), 1.0, 1e-6);
  EXPECT_EQ(parsed().find("otherData")->find("dropped")->as_int(), 0);
}

TEST_F(trace_file_test, any_bytes_may_be_a_name) {
  const std::vector<std::string> names = {"quote \" backslash \\ end", std::string("zero \0 byte", 11), "line\nbreak\ttab\x01",
                                          "bad \xff\xfe utf-8",        "]}{\"traceEvents\":[",          "\xf0\x9f\x98\x80"};
  {
    trace_file trace(path_);
    for (const auto& n : names) trace.span({trace_track::compute}, n, 1, 2);
  }
  const auto all = events();
  ASSERT_EQ(all.size(), names.size());
  EXPECT_EQ(all[0].find("name")->as_string(), names[0]);
  EXPECT_EQ(all[1].find("name")->as_string(), names[1]);
  EXPECT_EQ(all[2].find("name")->as_string(), names[2]);
  EXPECT_EQ(all[3].find("name")->as_string(), "bad \xef\xbf\xbd\xef\xbf\xbd utf-8");
  EXPECT_EQ(all[5].find("name")->as_string(), names[5]);
}

TEST_F(trace_file_test, the_file_is_whole_after_each_writing_and_after_a_kill) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) { // writes until it is killed
    trace_file trace(path_, [](std::uint64_t) { return std::string("{}"); },
                     {std::size_t{1} << 20, std::size_t{1} << 30, std::chrono::milliseconds(1)});
    for (std::int64_t i = 0;; ++i) {
      trace.span({trace_track::compute}, "span", now(), now(), {{"i", i}});
      if (i % 64 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  kill(child, SIGTERM); // nobody catches it
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
  const auto all = events();
  ASSERT_GT(all.size(), 64U);
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i].find("args")->find("i")->as_int(), static_cast<std::int64_t>(i));
}

TEST_F(trace_file_test, memory_and_file_are_bounded_and_the_rest_is_counted) {
  constexpr std::uint64_t kEvents = 20'000;
  std::uint64_t written = 0, dropped = 0;
  {
    trace_file trace(path_, {}, {4096, 100'000, std::chrono::milliseconds(2)});
    for (std::uint64_t i = 0; i < kEvents; ++i) trace.span({trace_track::deliver}, "span", i, i + 1);
    trace.flush();
    written = trace.written();
    dropped = trace.dropped();
  }
  EXPECT_GT(written, 0U);
  EXPECT_EQ(written + dropped, kEvents);
  EXPECT_EQ(events().size(), written);
  EXPECT_LT(std::filesystem::file_size(path_), 101'000U);
}

TEST_F(trace_file_test, memory_that_runs_out_while_writing_costs_those_events_alone) {
  std::atomic<bool> full{false};
  {
    trace_file trace(path_, [&](std::uint64_t) { return full ? throw std::bad_alloc() : std::string("{}"); });
    trace.mark("before", now());
    trace.flush();
    full = true;
    trace.mark("lost", now());
    trace.mark("lost", now());
    trace.flush();
    EXPECT_EQ(trace.dropped(), 2U);
    EXPECT_EQ(events().size(), 1U);
    full = false;
    trace.mark("after", now());
    trace.flush();
    EXPECT_EQ(trace.written(), 2U);
    full = true; // the last writing, by the destructor
  }
  const auto all = events();
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[1].find("name")->as_string(), "after");
}

TEST_F(trace_file_test, threads_may_add_at_once) {
  constexpr int kThreads = 4, kEach = 500;
  {
    trace_file trace(path_);
    std::vector<std::jthread> crew;
    for (int t = 0; t < kThreads; ++t) {
      crew.emplace_back([&trace, t] {
        for (int i = 0; i < kEach; ++i) trace.phase(static_cast<std::uint64_t>(t), "decode", i % 2 == 0, now());
      });
    }
  }
  EXPECT_EQ(events().size(), static_cast<std::size_t>(kThreads * kEach));
}

TEST_F(trace_file_test, a_path_that_cannot_be_written_is_refused_with_its_name) {
  try {
    const trace_file trace("/proc/no-such-folder/trace.json");
    FAIL() << "no error";
  } catch (const std::runtime_error& e) {
    EXPECT_THAT(e.what(), testing::HasSubstr("/proc/no-such-folder/trace.json"));
  }
}

} // namespace
} // namespace troupe::telemetry
