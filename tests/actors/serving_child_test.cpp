// The device in a child process: killed, frozen, crashing, not starting, orphaned.
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>

#include "actors/child_process.hpp"
#include "tests/actors/processes.hpp"
#include "tests/actors/serving_fixture.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;
using test::children_of_this_process;
using test::eventually;
using test::gone;
using test::gone_or_zombie;

class serving_child_test : public test::serving_test {
 protected:
  void start_with(std::vector<std::string> flags) {
    options.worker_command = {TROUPE_FAKE_WORKER};
    options.worker_command.insert(options.worker_command.end(), flags.begin(), flags.end());
    start();
  }
  void TearDown() override {
    test::serving_test::TearDown();
    EXPECT_EQ(children_of_this_process(), 0) << "a child or a zombie was left";
  }
  void submit_texts(int count, std::int32_t max_tokens) {
    for (int i = 0; i < count; ++i) texts.push_back("text number " + std::to_string(i));
    for (const auto& text : texts) submit(request(text, max_tokens));
  }
  void expect_texts(std::int32_t max_tokens) {
    for (std::size_t i = 0; i < texts.size(); ++i) expect_stream(*sinks[i], texts[i], max_tokens);
  }

  std::vector<std::string> texts;
};

TEST_F(serving_child_test, a_device_in_a_child_gives_the_same_tokens) {
  start_with({});
  EXPECT_GT(server->device_pid(), 0);
  EXPECT_NE(server->device_pid(), getpid());
  submit_texts(20, 60);
  expect_texts(60);
  EXPECT_EQ(faults->made, 0) << "no device in this process";
  const int pid = server->device_pid();
  expect_idle();
  server->stop();
  EXPECT_TRUE(gone(pid));
  EXPECT_EQ(server->device_pid(), 0);
}

TEST_F(serving_child_test, kill_in_mid_load_loses_nothing_and_changes_no_token) {
  options.max_restarts = 10;
  start_with({"--step-us", "1000"});
  submit_texts(16, 120);
  for (int kill_number = 0; kill_number < 3; ++kill_number) {
    const int pid = server->device_pid();
    ASSERT_TRUE(sinks[0]->wait_for_outputs(10 + 20 * kill_number));
    ASSERT_GT(pid, 0);
    ASSERT_EQ(kill(pid, SIGKILL), 0);
    ASSERT_TRUE(eventually([&] { return server->device_pid() != pid && server->device_pid() != 0; }));
    EXPECT_TRUE(server->status().ready) << "requests queue meanwhile";
    EXPECT_TRUE(gone(pid)) << "not reaped";
  }
  expect_texts(120);
  EXPECT_EQ(metric("troupe_device_restarts_total"), 3);
  expect_idle();
}

TEST_F(serving_child_test, a_frozen_child_is_noticed_killed_and_replaced) {
  start_with({"--step-us", "1000"});
  submit_texts(4, 100);
  ASSERT_TRUE(sinks[0]->wait_for_outputs(5));
  const int pid = server->device_pid();
  ASSERT_EQ(kill(pid, SIGSTOP), 0);
  expect_texts(100);
  EXPECT_NE(server->device_pid(), pid);
  EXPECT_TRUE(gone(pid));
  EXPECT_EQ(metric("troupe_device_restarts_total"), 1);
}

TEST_F(serving_child_test, an_idle_child_that_dies_is_replaced_too) {
  start_with({});
  const int pid = server->device_pid();
  ASSERT_EQ(kill(pid, SIGKILL), 0);
  ASSERT_TRUE(eventually([&] { return server->device_pid() != pid && server->device_pid() != 0; }));
  submit_texts(1, 10);
  expect_texts(10);
}

TEST_F(serving_child_test, a_request_that_crashes_the_process_is_quarantined_alone) {
  options.max_restarts = 10;
  start_with({"--step-us", "200", "--abort-on", std::to_string('Z')});
  submit_texts(5, 60);
  auto fatal = submit(request("Z", 60));
  ASSERT_TRUE(fatal->wait());
  ASSERT_TRUE(fatal->failed);
  EXPECT_EQ(fatal->failed->kind, error_kind::internal);
  expect_texts(60);
}

TEST_F(serving_child_test, a_child_whose_steps_fail_is_replaced) {
  options.max_restarts = 10;
  start_with({"--poison", std::to_string('Z')});
  auto poisoned = submit(request("Z", 60));
  ASSERT_TRUE(poisoned->wait());
  EXPECT_TRUE(poisoned->failed);
  auto fine = submit(request("fine", 20));
  expect_stream(*fine, "fine", 20);
}

TEST_F(serving_child_test, a_child_that_dies_too_often_escalates) {
  options.max_restarts = 1;
  start_with({"--step-us", "1000"});
  submit_texts(3, 400);
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(eventually([&] { return server->device_pid() != 0; }));
    const int pid = server->device_pid();
    kill(pid, SIGKILL);
    ASSERT_TRUE(eventually([&] { return server->device_pid() != pid; }));
  }
  for (auto& sink : sinks) ASSERT_TRUE(sink->wait());
  ASSERT_TRUE(eventually([&] { return !server->status().live; }));
  EXPECT_NE(server->status().reason.find("signal 9"), std::string::npos) << server->status().reason;
}

TEST_F(serving_child_test, a_child_that_fails_to_start_says_why) {
  try {
    start_with({"--fail-start"});
    FAIL() << "started";
  } catch (const std::runtime_error& e) {
    EXPECT_NE(std::string(e.what()).find("the fake device does not start"), std::string::npos) << e.what();
  }
}

TEST_F(serving_child_test, a_child_that_exits_at_once_is_told_by_its_exit_code) {
  try {
    start_with({"--exit-at-once"});
    FAIL() << "started";
  } catch (const std::runtime_error& e) {
    EXPECT_NE(std::string(e.what()).find("exit code 3"), std::string::npos) << e.what();
  }
}

TEST_F(serving_child_test, a_program_that_does_not_exist_is_an_error_of_start) {
  options.worker_command = {"/nowhere/no-such-program"};
  EXPECT_THROW(start(), std::runtime_error);
}

TEST_F(serving_child_test, a_child_that_never_reports_is_given_up_at_the_start_deadline) {
  options.start_deadline = 500ms;
  options.worker_command = {"/bin/sh", "-c", "exec sleep 1000"};
  const auto began = std::chrono::steady_clock::now();
  EXPECT_THROW(start(), std::runtime_error);
  EXPECT_LT(std::chrono::steady_clock::now() - began, 10s);
}

TEST_F(serving_child_test, stop_while_busy_leaves_no_child) {
  start_with({"--step-us", "5000"});
  submit_texts(6, 400);
  ASSERT_TRUE(sinks[0]->wait_for_outputs(1));
  const int pid = server->device_pid();
  server->stop();
  EXPECT_TRUE(gone(pid));
}

TEST_F(serving_child_test, the_child_goes_when_its_parent_is_killed) {
  const std::string file = testing::TempDir() + "device_pid_" + std::to_string(getpid());
  unlink(file.c_str());
  int device_pid = 0;
  {
    actors::child_process parent({TROUPE_FAKE_WORKER, "--serve", file}, "", [](int) {});
    ASSERT_TRUE(eventually([&] { return static_cast<bool>(std::ifstream(file) >> device_pid); }));
    ASSERT_GT(device_pid, 0);
    EXPECT_FALSE(gone_or_zombie(device_pid));
    parent.kill();
  }
  EXPECT_TRUE(eventually([&] { return gone_or_zombie(device_pid); }, 10s)); // whoever inherits it reaps it
  unlink(file.c_str());
}

} // namespace
} // namespace troupe
