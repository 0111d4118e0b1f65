// The parts without actors: registry, health, restart intensity, child process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <future>
#include <mutex>
#include <thread>
#include <vector>

#include "actors/child_process.hpp"
#include "actors/group_limits.hpp"
#include "actors/health.hpp"
#include "actors/request_registry.hpp"
#include "actors/restart_policy.hpp"

namespace troupe::actors {
namespace {

using namespace std::chrono_literals;

class silent_sink final : public token_sink {
  void on_prompt(const prompt_report&) override {}
  void on_output(const output_chunk&) override {}
  void on_finished(const usage_report&) override {}
  void on_error(const error&) override {}
};

std::shared_ptr<token_sink> sink() { return std::make_shared<silent_sink>(); }

TEST(request_registry, a_sink_is_taken_once) {
  request_registry registry({10, 100});
  ASSERT_FALSE(registry.add(1, sink(), 1, 10));
  EXPECT_NE(registry.find(1), nullptr);
  EXPECT_NE(registry.take(1), nullptr);
  EXPECT_EQ(registry.take(1), nullptr);
  EXPECT_EQ(registry.find(1), nullptr);
  EXPECT_EQ(registry.active_requests(), 0U);
}

TEST(request_registry, bounds_choices_and_bytes_that_wait_and_frees_them_on_every_way_out) {
  request_registry registry({4, 100});
  EXPECT_FALSE(registry.add(1, sink(), 3, 40));
  EXPECT_EQ(registry.add(2, sink(), 2, 1)->kind, error_kind::overloaded);
  EXPECT_EQ(registry.add(2, sink(), 1, 61)->kind, error_kind::overloaded);
  registry.enter_engine(1, 0, 5); // no longer counted
  EXPECT_FALSE(registry.add(2, sink(), 4, 100));
  registry.take(1);
  EXPECT_EQ(registry.add(3, sink(), 1, 0)->kind, error_kind::overloaded) << "taken after it left the queue: freed twice?";
  registry.take(2);
  std::uint64_t number = 0;
  EXPECT_FALSE(registry.add_call({nullptr, nullptr, 100}, number));
  EXPECT_EQ(registry.add(3, sink(), 1, 1)->kind, error_kind::overloaded);
  EXPECT_TRUE(registry.take_call(number));
  EXPECT_FALSE(registry.take_call(number));
  EXPECT_FALSE(registry.add(3, sink(), 4, 100));
}

TEST(request_registry, refuses_huge_counts_without_overflow) {
  request_registry registry({4, 100});
  EXPECT_TRUE(registry.add(1, sink(), std::numeric_limits<std::int64_t>::max(), 1));
  EXPECT_TRUE(registry.add(1, sink(), 1, std::numeric_limits<std::size_t>::max()));
  EXPECT_FALSE(registry.add(1, sink(), 4, 100));
}

TEST(request_registry, refuses_id_zero_doubles_and_everything_once_closed) {
  request_registry registry({4, 100});
  EXPECT_EQ(registry.add(0, sink(), 1, 1)->kind, error_kind::internal);
  EXPECT_FALSE(registry.add(1, sink(), 1, 1));
  EXPECT_EQ(registry.add(1, sink(), 1, 1)->kind, error_kind::internal);
  registry.close();
  EXPECT_EQ(registry.add(2, sink(), 1, 1)->kind, error_kind::unavailable);
  EXPECT_NE(registry.take(1), nullptr) << "what is in stays until it ends";
}

TEST(request_registry, knows_which_requests_are_in_the_engine) {
  request_registry registry({4, 100});
  registry.add(1, sink(), 1, 1);
  registry.add(2, sink(), 1, 1);
  EXPECT_FALSE(registry.busy_since());
  registry.enter_engine(3, 0, 5); // unknown
  EXPECT_FALSE(registry.busy_since());
  registry.enter_engine(1, 0, 10);
  registry.enter_engine(2, 0, 20);
  EXPECT_EQ(registry.busy_since(), 10U) << "when the first came";
  EXPECT_THAT(registry.ids(true), testing::UnorderedElementsAre(1, 2));
  registry.take(1);
  EXPECT_EQ(registry.load(0), 1);
  registry.take(2);
  EXPECT_EQ(registry.load(0), 0);
  EXPECT_FALSE(registry.busy_since());
}

TEST(request_registry, loads_count_choices_where_they_are) {
  request_registry registry({10, 100}, 2);
  registry.add(1, sink(), 3, 1);
  registry.add(2, sink(), 1, 1);
  EXPECT_EQ(registry.load(0), 0) << "at the tokenizer";
  registry.enter_engine(1, 0, 5);
  registry.enter_engine(2, 1, 5);
  EXPECT_EQ(registry.load(0), 3);
  EXPECT_TRUE(registry.move(1, 1));
  EXPECT_EQ(registry.load(0), 0);
  EXPECT_EQ(registry.load(1), 4);
  registry.take(1);
  EXPECT_EQ(registry.load(1), 1);
  EXPECT_FALSE(registry.move(1, 0)) << "it has ended";
}

TEST(health_board, no_progress_with_work_pending_is_neither_ready_nor_live) {
  health_board board(1, 100ms, 1s);
  board.group_up(0, true);
  const std::uint64_t now = now_ns();
  EXPECT_TRUE(board.status(now, now + 50'000'000).ready);
  const auto stuck = board.status(now, now + 200'000'000);
  EXPECT_FALSE(stuck.ready);
  EXPECT_FALSE(stuck.live);
  EXPECT_NE(stuck.reason, "");
  EXPECT_TRUE(board.status(std::nullopt, now + 200'000'000).ready) << "idle is no fault";
  EXPECT_TRUE(board.status(now + 190'000'000, now + 200'000'000).ready) << "the first request after a long idle";
  board.step_completed(0);
  EXPECT_TRUE(board.status(now, now_ns() + 50'000'000).ready);
}

TEST(health_board, replacing_a_device_has_a_longer_limit_but_has_one) {
  health_board board(1, 100ms, 1s);
  board.group_up(0, true);
  board.group_up(0, false);
  const std::uint64_t now = now_ns();
  EXPECT_TRUE(board.status(now, now + 500'000'000).ready);
  EXPECT_FALSE(board.status(now, now + 2'000'000'000).live);
}

TEST(health_board, the_time_that_a_replacement_took_is_not_held_against_it) {
  health_board board(1, 1ms, 1h);
  const std::uint64_t long_ago = now_ns();
  board.group_up(0, false);
  std::this_thread::sleep_for(20ms);
  board.group_up(0, true);
  EXPECT_TRUE(board.status(long_ago, now_ns()).live);
}

TEST(health_board, escalation_is_for_good_and_keeps_its_first_reason) {
  health_board board(1, 100ms, 1s);
  board.group_up(0, true);
  board.fail("first");
  board.fail("second");
  const auto s = board.status(std::nullopt, now_ns());
  EXPECT_FALSE(s.live || s.ready);
  EXPECT_EQ(s.reason, "first");
  EXPECT_FALSE(board.accepts());
}

TEST(health_board, one_group_is_enough_and_the_missing_one_is_named) {
  health_board board(2, 100ms, 1s);
  board.group_up(0, true);
  board.group_up(1, true);
  EXPECT_EQ(board.status(std::nullopt, now_ns()).reason, "");
  board.group_up(1, false);
  EXPECT_TRUE(board.status(std::nullopt, now_ns()).ready);
  EXPECT_EQ(board.status(std::nullopt, now_ns()).reason, "1 of 2 replicas are up");
  EXPECT_EQ(board.losses(1), 1U);
  EXPECT_TRUE(board.other_is_up(1));
  EXPECT_FALSE(board.other_is_up(0));
  board.give_group_up(1, "first");
  EXPECT_TRUE(board.status(std::nullopt, now_ns()).live);
  EXPECT_EQ(board.losses(1), 1U) << "it was lost before";
  board.give_group_up(0, "second");
  EXPECT_FALSE(board.status(std::nullopt, now_ns()).live);
  EXPECT_EQ(board.status(std::nullopt, now_ns()).reason, "second");
}

TEST(health_board, without_room_for_any_group_it_is_live_and_after_a_while_not_ready) {
  health_board board(2, 100ms, 1s);
  board.group_up(0, true);
  board.give_group_up(1, "a fault");
  board.group_up(0, false);
  board.group_waits(0, "waits for slots");
  const std::uint64_t now = now_ns();
  EXPECT_TRUE(board.status(now, now + 9'000'000'000).ready) << "a node that comes back soon is nothing that others need to know";
  EXPECT_TRUE(board.accepts(now + 9'000'000'000));
  board.group_waits(0, "waits for slots: another number"); // does not begin anew
  const std::uint64_t later = now_ns() + 11'000'000'000;
  const auto s = board.status(now, later);
  EXPECT_FALSE(s.ready);
  EXPECT_TRUE(s.live) << "a new start would not bring a machine back";
  EXPECT_EQ(s.reason, "waits for slots: another number");
  EXPECT_FALSE(board.accepts(later));
  EXPECT_EQ(board.refusal().message, "the model waits for slots: another number");
  EXPECT_TRUE(board.refusal().retry_after_seconds);
  board.group_waits(0, "");
  EXPECT_TRUE(board.accepts(later)) << "it starts";
  EXPECT_TRUE(board.status(now, now_ns() + 500'000'000).live) << "and has its time to";
  board.group_up(0, true);
  EXPECT_TRUE(board.status(now, now_ns()).ready);
}

TEST(health_board, a_group_that_waits_for_room_is_the_last_one_when_the_other_is_given_up) {
  health_board board(2, 100ms, 1s);
  board.group_up(1, true);
  board.group_waits(0, "waits for slots");
  EXPECT_TRUE(board.accepts(now_ns() + 20'000'000'000));
  board.give_group_up(1, "a fault");
  const std::uint64_t later = now_ns() + 20'000'000'000;
  EXPECT_FALSE(board.accepts(later));
  EXPECT_TRUE(board.status(std::nullopt, later).live);
}

TEST(health_board, a_group_that_waits_for_room_does_not_matter_while_another_is_up) {
  health_board board(2, 100ms, 1s);
  board.group_up(0, true);
  board.group_waits(1, "waits for slots");
  const std::uint64_t later = now_ns() + 20'000'000'000;
  EXPECT_TRUE(board.accepts(later));
  EXPECT_TRUE(board.status(std::nullopt, later).ready);
}

TEST(health_board, says_what_groups_wait_for_until_none_waits) {
  std::vector<std::string> said;
  health_board board(2, 100ms, 1s, [&](const std::string& for_what) { said.push_back(for_what); });
  board.group_waits(0, ""); // as every group does that starts
  EXPECT_TRUE(said.empty());
  board.group_waits(0, "waits for slots: 1");
  board.group_waits(1, "waits for slots: 1");
  board.group_waits(1, "waits for slots: 2");
  board.group_waits(0, "");
  board.group_waits(1, "");
  EXPECT_EQ(said, (std::vector<std::string>{"waits for slots: 1", "waits for slots: 1", "waits for slots: 2", "waits for slots: 2", ""}));
}

TEST(health_board, draining_is_live_but_not_ready) {
  health_board board(1, 100ms, 1s);
  board.group_up(0, true);
  board.drain();
  const auto s = board.status(std::nullopt, now_ns());
  EXPECT_TRUE(s.live && s.draining);
  EXPECT_FALSE(s.ready);
}

executor_info some_device() { return {4, 100, 8, 16, 128, 97}; }

TEST(group_limits, ranks_differ_in_their_pools_alone) {
  auto smaller = some_device(), other = some_device();
  smaller.num_blocks = 60;
  ++other.max_num_seqs;
  EXPECT_EQ(limits_of_group(std::vector{some_device(), smaller}, {}).info.num_blocks, 60);
  EXPECT_EQ(limits_of_group(std::vector{smaller, some_device()}, {}).objection, "");
  EXPECT_EQ(limits_of_group(std::vector{some_device(), other}, {}).objection, "rank 1 has other limits than rank 0");
}

TEST(group_limits, a_group_formed_anew_is_what_it_was) {
  auto smaller = some_device(), larger = some_device();
  smaller.num_blocks = 60;
  larger.num_blocks = 200;
  EXPECT_NE(limits_of_group(std::vector{smaller}, some_device()).objection, "");
  const auto agreed = limits_of_group(std::vector{larger}, some_device());
  EXPECT_EQ(agreed.objection, "");
  EXPECT_EQ(agreed.info.num_blocks, 100) << "the scheduler knows no more";
}

TEST(group_limits, what_no_scheduler_takes_is_refused) {
  auto impossible = some_device();
  impossible.max_batched_tokens = 1;
  EXPECT_NE(limits_of_group(std::vector{impossible}, {}).objection, "");
}

TEST(restart_policy, counts_within_its_period_only) {
  restart_policy policy(2, 10s);
  constexpr std::uint64_t second = 1'000'000'000;
  EXPECT_TRUE(policy.allow(1 * second, false));
  EXPECT_TRUE(policy.allow(2 * second, false));
  EXPECT_FALSE(policy.allow(3 * second, false));
  EXPECT_TRUE(policy.allow(12 * second, false)) << "the first is forgotten";
  EXPECT_FALSE(policy.allow(12 * second, false));
}

TEST(restart_policy, devices_that_never_complete_a_step_count_for_ever) {
  restart_policy policy(2, 10s);
  constexpr std::uint64_t hour = 3'600'000'000'000;
  EXPECT_TRUE(policy.allow(1 * hour, true));
  EXPECT_TRUE(policy.allow(2 * hour, true));
  EXPECT_FALSE(policy.allow(3 * hour, true));
}

TEST(restart_policy, zero_means_never) { EXPECT_FALSE(restart_policy(0, 10s).allow(1, false)); }

TEST(child_process, reports_exit_codes_and_signals_once_and_reaps) {
  for (const auto& [script, text] : {std::pair{"exit 3", "exit code 3"}, std::pair{"kill -TERM $$", "signal 15 (Terminated)"}}) {
    std::promise<int> ended;
    child_process child({"/bin/sh", "-c", script}, "", [&](int status) { ended.set_value(status); });
    EXPECT_EQ(describe_status(ended.get_future().get()), text);
    EXPECT_EQ(kill(child.pid(), 0), 0) << "not reaped before the destructor: the id cannot be reused";
  }
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "no child is left";
}

TEST(child_process, reports_each_stop_and_then_its_end) {
  std::mutex guard;
  std::vector<int> seen;
  const auto count = [&] {
    const std::lock_guard lock(guard);
    return seen.size();
  };
  child_process child({"/bin/sh", "-c", "exec sleep 1000"}, "", [&](int status) {
    const std::lock_guard lock(guard);
    seen.push_back(status);
  });
  for (std::size_t round = 1; round <= 2; ++round) {
    kill(child.pid(), SIGSTOP);
    while (count() < round) std::this_thread::sleep_for(1ms);
    EXPECT_TRUE(WIFSTOPPED(seen[round - 1]));
    kill(child.pid(), SIGCONT);
    std::this_thread::sleep_for(20ms);
  }
  child.kill();
  while (count() < 3) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(describe_status(seen[2]), "signal 9 (Killed)");
}

TEST(child_process, ends_with_its_object) {
  pid_t pid = 0;
  {
    child_process child({"/bin/sh", "-c", "trap '' TERM; exec sleep 1000"}, "", [](int) {});
    pid = child.pid();
  }
  EXPECT_EQ(kill(pid, 0), -1);
}

TEST(child_process, inherits_no_file_but_a_standard_input_that_brings_a_line_and_stays_open) {
  ASSERT_EQ(dup2(STDERR_FILENO, 50), 50); // as a client's connection might be
  std::promise<int> ended;
  child_process child(
      {"/bin/sh", "-c", "test -e /proc/self/fd/50 && exit 1; read line && test \"$line\" = secret || exit 2; timeout 0.1 cat; exit $?"},
      "secret", [&](int status) { ended.set_value(status); });
  EXPECT_EQ(describe_status(ended.get_future().get()), "exit code 124") << "1: inherited, 2: no first line, 0: end of input";
  close(50);
}

TEST(child_process, a_missing_program_is_an_exception) {
  EXPECT_THROW(child_process({"/nowhere/at-all"}, "", [](int) {}), std::runtime_error);
  EXPECT_THROW(child_process({}, "", [](int) {}), std::runtime_error);
}

} // namespace
} // namespace troupe::actors
