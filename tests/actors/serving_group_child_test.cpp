// Groups whose ranks are processes: killed, frozen, crashing, slow to start, in every rank.
#include <signal.h>
#include <unistd.h>

#include "tests/actors/group_fixture.hpp"
#include "tests/actors/processes.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;
using test::eventually;

class serving_group_child_test : public test::group_test {
 protected:
  void start_with(std::int32_t ranks, std::vector<std::string> flags, std::int32_t replicas = 1) {
    shape(ranks, replicas);
    options.worker_command = {TROUPE_FAKE_WORKER};
    options.worker_command.insert(options.worker_command.end(), flags.begin(), flags.end());
    start_group();
  }
  void TearDown() override {
    test::group_test::TearDown();
    EXPECT_EQ(test::children_of_this_process(), 0) << "a child or a zombie was left";
  }

  std::vector<int> pids(int replica = 0) const {
    std::vector<int> all;
    for (int rank = 0; rank < options.group_size; ++rank) all.push_back(server->device_pid(replica, rank));
    return all;
  }
  // Every rank has another process than in `before`.
  bool replaced(const std::vector<int>& before, int replica = 0) const {
    const auto now = pids(replica);
    for (std::size_t rank = 0; rank < now.size(); ++rank) {
      if (now[rank] == 0 || now[rank] == before[rank]) return false;
    }
    return true;
  }
  // Under load, `number` strikes one process of a group; how long it takes until all of the group are gone.
  std::chrono::milliseconds strike(int rank, int number) {
    const auto before = pids();
    const auto began = std::chrono::steady_clock::now();
    EXPECT_EQ(kill(before[static_cast<std::size_t>(rank)], number), 0);
    EXPECT_TRUE(eventually([&] { return replaced(before); })) << log();
    for (const int pid : before) EXPECT_TRUE(test::gone(pid)) << "not reaped";
    return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - began);
  }
};

TEST_F(serving_group_child_test, ranks_in_processes_give_the_same_tokens) {
  start_with(4, {});
  submit_texts(20, 60);
  expect_texts(60);
  const auto all = pids();
  EXPECT_EQ(faults->made, 0) << "no device in this process";
  server->stop();
  for (const int pid : all) EXPECT_TRUE(test::gone(pid));
}

TEST_F(serving_group_child_test, any_rank_killed_under_load_takes_the_group_along_and_loses_nothing) {
  options.max_restarts = 10;
  start_with(3, {"--step-us", "500"});
  submit_texts(8, 300);
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(sinks[0]->wait_for_outputs(10 + 40 * rank));
    strike(rank, SIGKILL);
    EXPECT_TRUE(server->status().ready);
  }
  expect_texts(300);
  EXPECT_EQ(metric("troupe_group_restarts_total"), 3) << log();
}

TEST_F(serving_group_child_test, kills_from_outside_blame_no_request) {
  options.max_restarts = 20;
  start_with(2, {"--step-us", "100000"}); // so slow that no token comes between the kills
  submit_texts(2, 3);
  for (int round = 0; round < 4; ++round) {
    ASSERT_TRUE(eventually([&] { return group_metric("troupe_group_up", 0) == 1; }));
    std::this_thread::sleep_for(30ms);
    strike(round % 2, SIGKILL); // the survivor says that it waited in vain: that is no fault of a request
  }
  expect_texts(3);
  EXPECT_EQ(metric("troupe_requests_total", "failed"), 0);
}

TEST_F(serving_group_child_test, any_frozen_rank_is_noticed_within_two_seconds) {
  options.max_restarts = 10;
  start_with(2, {"--step-us", "500"});
  for (int rank = 0; rank < 2; ++rank) {
    submit_texts(4, 100);
    ASSERT_TRUE(sinks.back()->wait_for_outputs(5));
    const auto took = strike(rank, SIGSTOP);
    EXPECT_GE(took, 500ms);
    EXPECT_LT(took, 10s) << "far from the step deadline"; // two seconds on a machine that has time; the failure table measures it
    expect_texts(100);
  }
}

TEST_F(serving_group_child_test, an_idle_group_is_watched_too_and_one_that_has_just_begun_to_start) {
  start_with(2, {});
  strike(1, SIGKILL);
  strike(0, SIGSTOP); // the new one is there, but may not have connected yet
  submit_texts(2, 20);
  expect_texts(20);
}

TEST_F(serving_group_child_test, a_request_that_crashes_one_rank_is_quarantined_alone) {
  options.max_restarts = 10;
  start_with(2, {"--step-us", "200", "--rank", "1", "--abort-on", std::to_string('Z')});
  submit_texts(5, 60);
  auto fatal = submit(request("Z", 60));
  ASSERT_TRUE(fatal->wait());
  ASSERT_TRUE(fatal->failed);
  expect_texts(60);
  EXPECT_EQ(metric("troupe_requests_total", "failed"), 1);
}

TEST_F(serving_group_child_test, a_rank_that_dies_while_the_group_starts_is_started_again) {
  options.max_restarts = 10;
  start_with(2, {"--rank", "1", "--slow-start-ms", "500"});
  strike(0, SIGKILL); // both are starting now
  for (const int number : {SIGKILL, SIGSTOP}) {
    const auto starting = pids();
    std::this_thread::sleep_for(200ms);
    kill(starting[1], number);
    ASSERT_TRUE(eventually([&] { return replaced(starting); })) << log();
  }
  submit_texts(2, 20);
  expect_texts(20);
}

TEST_F(serving_group_child_test, a_rank_that_does_not_start_at_first_says_which_and_why) {
  try {
    start_with(2, {"--fail-start"});
    FAIL() << "started";
  } catch (const std::runtime_error& e) {
    EXPECT_NE(std::string(e.what()).find("the fake device does not start"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("rank"), std::string::npos) << e.what();
  }
}

TEST_F(serving_group_child_test, the_other_replica_streams_on) {
  options.max_restarts = 10;
  start_with(2, {"--step-us", "500"}, 2);
  submit_texts(12, 200);
  ASSERT_TRUE(sinks[11]->wait_for_outputs(5));
  const auto other = pids(1);
  strike(1, SIGKILL);
  expect_texts(200);
  EXPECT_EQ(pids(1), other);
  EXPECT_EQ(group_metric("troupe_group_restarts_total", 0), 1);
  EXPECT_EQ(group_metric("troupe_group_restarts_total", 1), 0);
}

} // namespace
} // namespace troupe
