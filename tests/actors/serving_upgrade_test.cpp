// The device processes' program is replaced under load: nothing is lost, whether the new one is good, bad, or struck meanwhile.
#include <signal.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <sstream>

#include "actors/program_list.hpp"
#include "actors/worker_protocol.hpp"
#include "tests/actors/group_fixture.hpp"
#include "tests/actors/processes.hpp"
#include "tests/actors/programs.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;
using test::eventually;

using test::programs;

class serving_upgrade_test : public test::group_test {
 protected:
  void start_with(std::int32_t ranks, std::int32_t replicas = 1, int step_us = 1000) {
    shape(ranks, replicas);
    options.worker_command = {TROUPE_FAKE_WORKER, "--step-us", std::to_string(step_us)};
    start_group();
  }
  void TearDown() override {
    test::group_test::TearDown();
    EXPECT_EQ(test::children_of_this_process(), 0) << "a child or a zombie was left";
  }

  std::optional<std::string> change_to(const std::string& path, std::chrono::milliseconds start_deadline = 30s) {
    const auto found = actors::find_worker_program(path, 10s);
    if (const auto* refusal = std::get_if<std::string>(&found)) return *refusal;
    return server->replace_program(std::get<actors::worker_program>(found).command, start_deadline, [&](const std::string& line) {
      const std::lock_guard lock(notes_guard);
      notes += line + "\n";
    });
  }
  // A rank's process was started with this word.
  bool runs(const std::string& word, std::int32_t replica = 0, std::int32_t rank = 0) const {
    std::ifstream file("/proc/" + std::to_string(server->device_pid(replica, rank)) + "/cmdline");
    std::ostringstream text;
    text << file.rdbuf();
    return text.str().find(word) != std::string::npos;
  }
  void expect_old_program_and_texts(std::int32_t max_tokens) {
    EXPECT_FALSE(runs("--marked"));
    expect_texts(max_tokens);
    EXPECT_EQ(metric("troupe_requests_total", "failed"), 0);
  }

  int times_said(const std::string& words) {
    const std::string text = log();
    int times = 0;
    for (std::size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1)) ++times;
    return times;
  }

  programs files;
  std::mutex notes_guard;
  std::string notes;
};

TEST_F(serving_upgrade_test, a_new_program_takes_over_under_load_and_changes_no_token) {
  start_with(1, 1, 8000);
  submit_texts(12, 400);
  ASSERT_TRUE(sinks[0]->wait_for_outputs(10));
  const int before = server->device_pid();
  EXPECT_EQ(change_to(files.worker("good", "--marked")), std::nullopt) << log();
  EXPECT_TRUE(test::gone(before));
  EXPECT_TRUE(runs("--marked"));
  EXPECT_TRUE(server->status().ready);
  EXPECT_NE(notes.find("after a pause of"), std::string::npos) << notes;
  kill(server->device_pid(), SIGKILL); // who comes after a loss runs the new program, too
  expect_texts(400);
  EXPECT_TRUE(eventually([&] { return runs("--marked"); }));
  EXPECT_TRUE(eventually([&] { return metric("troupe_group_restarts_total") == 1; })) << "a change is no restart";
}

TEST_F(serving_upgrade_test, groups_change_one_after_another_and_the_others_stream_on) {
  start_with(2, 2, 8000);
  submit_texts(12, 480);
  ASSERT_TRUE(sinks[11]->wait_for_outputs(5));
  auto changed = std::async(std::launch::async, [&] { return change_to(files.worker("good", "--marked")); });
  ASSERT_TRUE(eventually([&] { return runs("--marked", 0) && runs("--marked", 0, 1); }));
  EXPECT_FALSE(runs("--marked", 1));
  EXPECT_EQ(group_metric("troupe_group_up", 1), 1);
  EXPECT_EQ(changed.get(), std::nullopt) << log();
  for (const int replica : {0, 1}) EXPECT_TRUE(runs("--marked", replica) && runs("--marked", replica, 1));
  expect_texts(480);
}

TEST_F(serving_upgrade_test, a_program_that_does_not_start_is_undone) {
  start_with(1);
  submit_texts(6, 400);
  ASSERT_TRUE(sinks[0]->wait_for_outputs(10));
  const auto failure = change_to(files.worker("bad", "--marked --fail-start"));
  ASSERT_TRUE(failure);
  EXPECT_NE(failure->find("the fake device does not start"), std::string::npos) << *failure;
  const auto left = change_to(files.worker("leaves", "--marked --exit-at-once"));
  ASSERT_TRUE(left);
  EXPECT_NE(left->find("exit code 3"), std::string::npos) << *left;
  expect_old_program_and_texts(400);
}

TEST_F(serving_upgrade_test, a_program_that_never_gets_ready_is_undone_at_the_deadline) {
  start_with(1);
  submit_texts(3, 400);
  ASSERT_TRUE(sinks[0]->wait_for_outputs(10));
  const auto failure = change_to(files.rank("sleeps", "exec sleep 1000"), 300ms);
  ASSERT_TRUE(failure);
  EXPECT_NE(failure->find("300 ms"), std::string::npos) << *failure;
  expect_old_program_and_texts(400);
}

TEST_F(serving_upgrade_test, a_program_whose_ranks_have_other_limits_is_undone) {
  start_with(1);
  submit_texts(3, 400);
  ASSERT_TRUE(sinks[0]->wait_for_outputs(10));
  const auto failure = change_to(files.worker("other", "--marked --other-limits"));
  ASSERT_TRUE(failure);
  EXPECT_NE(failure->find("other limits"), std::string::npos) << *failure;
  expect_old_program_and_texts(400);
}

TEST_F(serving_upgrade_test, a_program_that_crashes_at_its_first_steps_is_undone_and_blames_no_request) {
  start_with(1);
  submit_texts(6, 400);
  ASSERT_TRUE(sinks[0]->wait_for_outputs(10));
  const auto failure = change_to(files.worker("crashes", "--marked --abort-on " + std::to_string('t'))); // every text has one
  ASSERT_TRUE(failure);
  EXPECT_NE(failure->find("exit code 77"), std::string::npos) << *failure;
  expect_old_program_and_texts(400);
}

// A frozen process looks like one that was struck from outside, so the program gets a second try.
TEST_F(serving_upgrade_test, a_program_that_freezes_at_its_first_steps_is_undone_at_the_second_loss) {
  start_with(1, 1, 8000);
  submit_texts(4, 400);
  ASSERT_TRUE(sinks[0]->wait_for_outputs(10));
  const auto failure = change_to(files.worker("freezes", "--marked --freeze-on " + std::to_string('t')));
  ASSERT_TRUE(failure);
  EXPECT_NE(failure->find("does not answer"), std::string::npos) << *failure;
  EXPECT_EQ(times_said("device lost"), 2) << log();
  expect_old_program_and_texts(400);
}

TEST_F(serving_upgrade_test, a_program_whose_ranks_wait_for_each_other_in_vain_is_undone_at_the_second_loss) {
  start_with(2, 1, 8000);
  submit_texts(4, 400);
  ASSERT_TRUE(sinks[0]->wait_for_outputs(10));
  const auto failure = change_to(files.worker("deserts", "--marked --barrier-ms 200 --rank 1 --hang-on " + std::to_string('t')));
  ASSERT_TRUE(failure);
  EXPECT_NE(failure->find("did not come in time"), std::string::npos) << *failure;
  EXPECT_EQ(times_said("device lost"), 2) << log();
  expect_old_program_and_texts(400);
}

TEST_F(serving_upgrade_test, a_program_that_ends_no_step_proves_nothing_and_is_undone_at_the_deadline_of_the_step) {
  options.step_deadline = 4s; // longer than a proof takes
  start_with(1, 1, 8000);
  submit_texts(4, 400);
  ASSERT_TRUE(sinks[0]->wait_for_outputs(10));
  const auto failure = change_to(files.worker("hangs", "--marked --hang-on " + std::to_string('t')));
  ASSERT_TRUE(failure);
  EXPECT_NE(failure->find("step deadline of 4000 ms"), std::string::npos) << *failure;
  EXPECT_EQ(times_said("device lost"), 1) << log();
  expect_old_program_and_texts(400);
}

// It is what was struck once already: a third start would be one too many.
TEST_F(serving_upgrade_test, a_program_that_is_struck_and_does_not_start_again_is_undone) {
  start_with(1, 1, 8000);
  submit_texts(4, 400);
  ASSERT_TRUE(sinks[0]->wait_for_outputs(10));
  auto changed = std::async(std::launch::async, [&] { return change_to(files.good_once("once", "--marked")); });
  ASSERT_TRUE(eventually([&] { return runs("--marked") && server->status().ready && log().find("after a pause") != std::string::npos; }));
  kill(server->device_pid(), SIGKILL);
  const auto failure = changed.get();
  ASSERT_TRUE(failure);
  EXPECT_NE(failure->find("exit code 5"), std::string::npos) << *failure;
  expect_old_program_and_texts(400);
}

TEST_F(serving_upgrade_test, undoing_is_no_restart) {
  options.max_restarts = 0;
  start_with(1);
  submit_texts(6, 400);
  ASSERT_TRUE(sinks[0]->wait_for_outputs(10));
  EXPECT_TRUE(change_to(files.worker("crashes", "--marked --abort-on " + std::to_string('t'))));
  expect_old_program_and_texts(400);
  EXPECT_EQ(metric("troupe_device_restarts_total"), 0);
}

TEST_F(serving_upgrade_test, what_fails_in_one_group_is_undone_in_those_before_it) {
  start_with(1, 2, 8000);
  submit_texts(8, 480);
  ASSERT_TRUE(sinks[0]->wait_for_outputs(5));
  const auto failure = change_to(files.good_once("once", "--marked"));
  ASSERT_TRUE(failure);
  EXPECT_NE(failure->find("replica 1"), std::string::npos) << *failure;
  EXPECT_NE(failure->find("exit code 5"), std::string::npos) << *failure;
  EXPECT_NE(failure->find("; the ranks run the program of before"), std::string::npos) << *failure;
  EXPECT_FALSE(runs("--marked", 0)) << notes;
  expect_old_program_and_texts(480);
}

TEST_F(serving_upgrade_test, a_rank_killed_meanwhile_puts_the_change_off_but_not_out) {
  options.max_restarts = 100;
  start_with(2, 1, 20000);
  submit_texts(6, 480);
  for (int round = 0; round < 4; ++round) {
    ASSERT_TRUE(sinks[0]->wait_for_outputs(10 + 20 * round));
    const std::string mark = "--marked" + std::to_string(round);
    auto changed = std::async(std::launch::async, [&] { return change_to(files.worker("good" + std::to_string(round), mark)); });
    std::this_thread::sleep_for(std::chrono::milliseconds(30 * round)); // before, in and after the pause
    if (const int pid = server->device_pid(0, round % 2); pid > 0) kill(pid, SIGKILL);
    const auto failure = changed.get();
    // Who is killed before it is ready did not start, whoever killed it.
    EXPECT_TRUE(failure ? failure->find("before it was ready") != std::string::npos : runs(mark)) << failure.value_or(log());
  }
  expect_texts(480);
  EXPECT_EQ(metric("troupe_requests_total", "failed"), 0);
}

TEST_F(serving_upgrade_test, a_change_waits_for_a_group_that_is_away) {
  options.max_restarts = 100;
  shape(1);
  options.worker_command = {TROUPE_FAKE_WORKER, "--step-us", "1000", "--slow-start-ms", "500"};
  start_group();
  submit_texts(2, 100);
  kill(server->device_pid(), SIGKILL);
  EXPECT_EQ(change_to(files.worker("good", "--marked")), std::nullopt) << log();
  EXPECT_TRUE(runs("--marked"));
  expect_texts(100);
}

// What was told and what is done are the same: a change that was called off does not come later.
TEST_F(serving_upgrade_test, a_change_whose_group_is_away_too_long_is_called_off) {
  options.max_restarts = 100;
  shape(1);
  options.worker_command = {TROUPE_FAKE_WORKER, "--step-us", "1000", "--slow-start-ms", "1500"};
  start_group();
  submit_texts(2, 300);
  ASSERT_TRUE(sinks[0]->wait_for_outputs(5));
  const auto good = std::get<actors::worker_program>(actors::find_worker_program(files.worker("good", "--marked"), 10s));
  kill(server->device_pid(), SIGKILL);
  ASSERT_TRUE(eventually([&] { return log().find("device lost") != std::string::npos; }));
  const auto failure = server->replace_program(good.command, 200ms, [](const std::string&) {});
  ASSERT_TRUE(failure);
  EXPECT_NE(failure->find("not up within 200 ms"), std::string::npos) << *failure;
  expect_old_program_and_texts(300);
  EXPECT_EQ(change_to(files.worker("good", "--marked")), std::nullopt) << log();
  EXPECT_TRUE(runs("--marked"));
}

TEST_F(serving_upgrade_test, a_deadline_out_of_bounds_is_refused_with_the_bounds) {
  start_with(1);
  for (const auto deadline : {0ms, -1ms, std::chrono::milliseconds(86'400'001)}) {
    const auto failure = change_to(files.worker("good", "--marked"), deadline);
    ASSERT_TRUE(failure);
    EXPECT_NE(failure->find("1 ms to 86400000 ms"), std::string::npos) << *failure;
  }
  EXPECT_FALSE(runs("--marked"));
}

TEST_F(serving_upgrade_test, the_end_of_the_server_ends_a_change) {
  start_with(1);
  const auto slow = files.worker("slow", "--slow-start-ms 60000");
  auto changed = std::async(std::launch::async, [&] { return change_to(slow, 60s); });
  ASSERT_TRUE(eventually([&] { return runs("60000"); }));
  auto next = std::async(std::launch::async, [&] { return server->replace_program("any", 1s, [](const std::string&) {}); });
  EXPECT_EQ(next.wait_for(100ms), std::future_status::timeout) << "it waits for its turn";
  server->stop();
  EXPECT_EQ(changed.get(), "the server is stopping");
  EXPECT_EQ(next.get(), "the server is stopping");
}

TEST_F(serving_upgrade_test, devices_in_threads_have_no_program_of_their_own) {
  shape(1);
  start_group();
  const auto failure = server->replace_program(TROUPE_FAKE_WORKER, 1s, [](const std::string&) {});
  ASSERT_TRUE(failure);
  EXPECT_NE(failure->find("--isolate-devices"), std::string::npos) << *failure;
}

class worker_program_test : public ::testing::Test {
 protected:
  std::string refusal(const std::string& path, std::chrono::milliseconds deadline = 10s) {
    const auto found = actors::find_worker_program(path, deadline);
    if (const auto* why = std::get_if<std::string>(&found)) return *why;
    return "none";
  }
  void expect_refusal(const std::string& path, const std::string& part, std::chrono::milliseconds deadline = 10s) {
    const std::string why = refusal(path, deadline);
    EXPECT_NE(why.find(part), std::string::npos) << why;
    EXPECT_NE(why.find(path), std::string::npos) << why;
  }
  programs files;
};

TEST_F(worker_program_test, what_is_no_such_program_is_refused_with_the_reason) {
  expect_refusal(files.path("missing"), "No such file");
  expect_refusal("/tmp", "no file");
  expect_refusal("/bin/false", "no troupe program");
  expect_refusal("/bin/echo", "no troupe program");
  expect_refusal(files.write("says_something", "echo troupe-worker"), "no troupe program");
  expect_refusal(files.write("floods", "yes | tr -d '\\n'"), "no troupe program");
  expect_refusal(files.write("older", "echo troupe-worker 0-0 0.0.9"), "0.0.9");
  expect_refusal(files.write("hangs", "exec sleep 1000"), "300 ms", 300ms);
  std::ofstream(files.path("text")) << "no program\n";
  expect_refusal(files.path("text"), "Permission denied");
  chmod(files.path("text").c_str(), 0755);
  expect_refusal(files.path("text"), "Exec format error");
  EXPECT_EQ(test::children_of_this_process(), 0);
}

TEST_F(worker_program_test, a_program_is_the_file_that_it_was_when_it_was_found) {
  const std::string path = files.worker("program", "");
  const auto found = actors::find_worker_program(path, 10s);
  ASSERT_TRUE(std::holds_alternative<actors::worker_program>(found)) << std::get<std::string>(found);
  EXPECT_EQ(std::get<actors::worker_program>(found).version, "fake");
  std::filesystem::remove(path);
  files.write("program", "exit 1");
  EXPECT_EQ(refusal(std::get<actors::worker_program>(found).command), "none") << "the old file still answers";
}

TEST_F(worker_program_test, a_program_that_nobody_runs_is_closed_and_forgotten) {
  const auto found = std::get<actors::worker_program>(actors::find_worker_program(files.worker("program", ""), 10s));
  actors::program_list programs("first");
  const auto number = programs.add(found.command);
  EXPECT_EQ(programs.at(number), found.command);
  programs.forget(number);
  actors::close_program(found);
  EXPECT_NE(refusal(found.command), "none");
  EXPECT_THROW(programs.at(number), std::out_of_range);
  EXPECT_NE(programs.add("other"), number) << "whoever still named the old one would get another";
  EXPECT_EQ(programs.at(0), "first");
}

TEST_F(worker_program_test, the_protocol_says_the_same_every_time_and_holds_no_space) {
  const std::string once = actors::worker_protocol();
  EXPECT_EQ(actors::worker_protocol(), once);
  EXPECT_EQ(once.find(' '), std::string::npos);
  EXPECT_EQ(once.size(), 18U) << once;
}

} // namespace
} // namespace troupe
