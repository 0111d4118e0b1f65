// Processes that stand by: called when ranks are killed, and neither missed nor trusted when they should not be.
#include <signal.h>

#include <algorithm>

#include "actors/worker_protocol.hpp"
#include "tests/actors/group_fixture.hpp"
#include "tests/actors/processes.hpp"
#include "tests/actors/programs.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;
using test::eventually;

class serving_standby_test : public test::group_test {
 protected:
  void start_with(std::int32_t ranks, const std::vector<std::string>& flags, std::int32_t replicas = 1) {
    shape(ranks, replicas);
    options.standby = true;
    options.max_restarts = 20;
    options.worker_command = {TROUPE_FAKE_WORKER, "--step-us", "500"};
    options.worker_command.insert(options.worker_command.end(), flags.begin(), flags.end());
    start_group();
  }
  void TearDown() override {
    test::group_test::TearDown();
    EXPECT_EQ(test::children_of_this_process(), 0) << "a child or a zombie was left";
  }

  int pid(int rank, int replica = 0) const { return server->device_pid(replica, rank); }
  // The process that stands by for a rank, and has not been called; 0: none.
  int standby(int rank, int replica = 0) const {
    auto found = test::pids_with("--stand-by-for", std::to_string(replica) + ":" + std::to_string(rank));
    found.erase(std::remove(found.begin(), found.end(), pid(rank, replica)), found.end());
    return found.size() == 1 ? found.front() : 0;
  }
  bool stands_by(int rank, int replica = 0) const { return standby(rank, replica) != 0; }
  bool all_stand_by(int ranks) const {
    for (int rank = 0; rank < ranks; ++rank) {
      if (!stands_by(rank)) return false;
    }
    return true;
  }
  // All ranks have other processes than before, once this one was struck.
  void strike(int rank, int number) {
    const std::vector<int> before = {pid(0), pid(1)};
    ASSERT_EQ(kill(before[static_cast<std::size_t>(rank)], number), 0);
    ASSERT_TRUE(eventually([&] { return pid(0) != 0 && pid(1) != 0 && pid(0) != before[0] && pid(1) != before[1]; })) << log();
  }
};

TEST_F(serving_standby_test, the_standbys_of_all_ranks_take_the_places_of_killed_ones) {
  start_with(2, {"--step-us", "2000"});
  for (const int number : {SIGKILL, SIGSTOP}) {
    ASSERT_TRUE(eventually([&] { return all_stand_by(2); }, 10s)) << "others take the places of those that were called";
    const int first = standby(0), second = standby(1);
    submit_texts(4, 200);
    ASSERT_TRUE(sinks.back()->wait_for_outputs(10)) << log();
    strike(1, number);
    EXPECT_EQ(pid(0), first);
    EXPECT_EQ(pid(1), second);
    expect_texts(200);
  }
  EXPECT_EQ(metric("troupe_group_restarts_total"), 2) << log();
}

TEST_F(serving_standby_test, two_kills_in_a_row_find_one_standby_and_start_the_next_process) {
  start_with(2, {});
  ASSERT_TRUE(eventually([&] { return all_stand_by(2); }, 10s));
  submit_texts(4, 300);
  const int first = standby(0);
  strike(0, SIGKILL);
  EXPECT_EQ(pid(0), first);
  strike(0, SIGKILL);
  EXPECT_NE(pid(0), first);
  expect_texts(300);
}

TEST_F(serving_standby_test, after_a_fault_no_standby_is_trusted) {
  start_with(2, {"--rank", "1", "--abort-on", std::to_string('Z')});
  ASSERT_TRUE(eventually([&] { return all_stand_by(2); }, 10s));
  const int first = standby(0), second = standby(1);
  const int before = pid(1);
  submit_texts(4, 200);
  auto fatal = submit(request("Z", 60));
  ASSERT_TRUE(eventually([&] { return pid(1) != 0 && pid(1) != before; })) << log();
  EXPECT_NE(pid(0), first);
  EXPECT_NE(pid(1), second);
  EXPECT_TRUE(eventually([&] { return test::gone(first) && test::gone(second); }));
  ASSERT_TRUE(fatal->wait());
  EXPECT_TRUE(fatal->failed);
  expect_texts(200);
}

TEST_F(serving_standby_test, a_standby_that_is_struck_harms_nobody) {
  start_with(2, {});
  ASSERT_TRUE(eventually([&] { return all_stand_by(2); }, 10s));
  submit_texts(4, 400);
  const int first = standby(0), second = standby(1);
  ASSERT_EQ(kill(first, SIGKILL), 0);
  ASSERT_EQ(kill(second, SIGSTOP), 0);
  EXPECT_TRUE(eventually([&] { return test::gone(first) && test::gone(second); })) << "ended, and reaped";
  EXPECT_NE(log().find("the standby process ended with signal 9"), std::string::npos) << log();
  EXPECT_EQ(metric("troupe_group_restarts_total"), 0) << log();
  strike(0, SIGKILL);
  expect_texts(400);
  EXPECT_EQ(metric("troupe_group_restarts_total"), 1) << log();
}

TEST_F(serving_standby_test, a_standby_that_cannot_get_ready_is_tried_once_for_each_group) {
  start_with(2, {"--standby-fails"});
  submit_texts(2, 20);
  expect_texts(20);
  const auto ends = [&] {
    const std::string text = log(), words = "the standby process ended with exit code 4";
    int times = 0;
    for (std::size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1)) ++times;
    return times;
  };
  ASSERT_TRUE(eventually([&] { return ends() == 2; }, 10s)) << log();
  std::this_thread::sleep_for(300ms);
  EXPECT_EQ(ends(), 2) << log();
  strike(0, SIGKILL);
  EXPECT_TRUE(eventually([&] { return ends() == 4; }, 10s)) << log();
}

TEST_F(serving_standby_test, one_that_does_not_answer_its_call_costs_three_seconds_and_no_request) {
  start_with(2, {"--standby-hangs"});
  ASSERT_TRUE(eventually([&] { return all_stand_by(2); }, 10s));
  submit_texts(2, 300);
  const int first = standby(0);
  strike(0, SIGKILL);
  ASSERT_TRUE(eventually([&] { return pid(0) != 0 && pid(0) != first; })) << log();
  EXPECT_NE(log().find("start failed: rank 0: the standby process does not answer"), std::string::npos) << log();
  expect_texts(300);
}

TEST_F(serving_standby_test, another_program_has_standbys_of_its_own) {
  const test::programs files;
  start_with(2, {});
  ASSERT_TRUE(eventually([&] { return all_stand_by(2); }, 10s));
  const int first = standby(0);
  const auto found = actors::find_worker_program(files.worker("good", "--marked"), 10s);
  ASSERT_TRUE(std::holds_alternative<actors::worker_program>(found));
  EXPECT_EQ(server->replace_program(std::get<actors::worker_program>(found).command, 30s, [](const std::string&) {}), std::nullopt)
      << log();
  EXPECT_TRUE(test::gone(first));
  const auto marked = [] { return test::children_with("--stand-by-for", "--marked"); };
  ASSERT_TRUE(eventually([&] { return marked() == 2; }, 10s)) << log();
  submit_texts(2, 300);
  strike(1, SIGKILL);
  EXPECT_EQ(marked(), 2) << "called";
  expect_texts(300);
}

TEST_F(serving_standby_test, replicas_have_standbys_of_their_own) {
  start_with(1, {}, 2);
  ASSERT_TRUE(eventually([&] { return stands_by(0, 0) && stands_by(0, 1); }, 10s));
  const int mine = standby(0, 0), others = standby(0, 1);
  const int before = pid(0, 0);
  ASSERT_EQ(kill(before, SIGKILL), 0);
  ASSERT_TRUE(eventually([&] { return pid(0, 0) == mine; })) << log();
  EXPECT_EQ(standby(0, 1), others);
  submit_texts(4, 50);
  expect_texts(50);
}

} // namespace
} // namespace troupe
