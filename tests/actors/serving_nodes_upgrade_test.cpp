// The program of one machine's ranks is replaced under load in a cluster: nothing is lost, whether the new one is good or bad, and whatever
// becomes of its node, of another, or of the head meanwhile.
#include <signal.h>

#include <future>

#include "actors/worker_protocol.hpp"
#include "tests/actors/nodes_fixture.hpp"
#include "tests/actors/processes.hpp"
#include "tests/actors/programs.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;
using test::eventually;

class serving_nodes_upgrade_test : public test::nodes_test {
 protected:
  using answer = std::optional<std::string>;

  std::string found(const std::string& path) {
    const auto program = actors::find_worker_program(path, 10s);
    if (const auto* refusal = std::get_if<std::string>(&program)) throw std::runtime_error(*refusal);
    return std::get<actors::worker_program>(program).command;
  }
  answer change(actors::node_membership& at, const std::string& path, std::chrono::milliseconds start_deadline = 30s) {
    return at.replace_program(found(path), start_deadline, [this](const std::string& line) { note("told: " + line); });
  }
  std::future<answer> change_later(actors::node_membership& at, const std::string& path, std::chrono::milliseconds start_deadline = 30s) {
    return std::async(std::launch::async, [=, this, &at] { return change(at, path, start_deadline); });
  }
  std::string good(const std::string& mark = "--marked") { return files.worker("good" + mark, mark); }
  // A rank that never gets ready.
  std::string sleeps() { return files.rank("sleeps", "exec sleep 1000"); }
  static int sleepers() { return test::children_with("sleep", "1000"); }
  static int on(const std::string& name, const std::string& mark = "--marked") { return test::children_with(mark, "--of-node-" + name); }
  static std::string why(const answer& failure) { return failure.value_or("no failure"); }
  void expect_told(const answer& failure, const std::string& part) {
    EXPECT_NE(why(failure).find(part), std::string::npos) << why(failure) << "\n" << lines();
  }
  // A group of two ranks on nodes a and b, in mid-stream.
  std::pair<actors::node_membership*, actors::node_membership*> start_two(const std::string& step_us, std::int32_t max_tokens) {
    start_head(2, 1, 0, {"--step-us", step_us});
    auto& a = join("a", 1);
    auto& b = join("b", 1);
    await_head();
    submit_texts(6, max_tokens);
    EXPECT_TRUE(sinks[0]->wait_for_outputs(10));
    return {&a, &b};
  }
  void expect_nothing_lost(std::int32_t max_tokens) {
    expect_texts(max_tokens);
    EXPECT_EQ(metric("troupe_requests_total", "failed"), 0);
  }

  test::programs files;
};

TEST_F(serving_nodes_upgrade_test, one_machine_after_another_changes_under_load_and_no_token_does) {
  start_head(2, 1, 1, {"--step-us", "8000"});
  auto& a = join("a", 1);
  await_head();
  submit_texts(8, 480);
  ASSERT_TRUE(sinks[0]->wait_for_outputs(10));
  EXPECT_EQ(change(a, good()), std::nullopt) << lines();
  EXPECT_EQ(on("a"), 1);
  EXPECT_EQ(test::children_of_this_process(), 2) << "the head's rank runs the program of before";
  EXPECT_TRUE(said("told: changed after a pause of")) << lines();
  EXPECT_EQ(server->replace_program(found(good("--head")), 30s, [](const std::string&) {}), std::nullopt) << lines();
  EXPECT_EQ(test::children_with("--head", "--parent-port"), 1);
  EXPECT_EQ(on("a"), 1) << "it starts with the program that it changed to";
  EXPECT_EQ(change(a, good("--again")), std::nullopt) << lines();
  EXPECT_EQ(on("a", "--again"), 1);
  expect_nothing_lost(480);
  EXPECT_EQ(metric("troupe_group_restarts_total"), 0) << "a change is no restart";
  kill(server->device_pid(), SIGKILL); // who comes after a loss runs the new programs
  EXPECT_TRUE(
      eventually([&] { return metric("troupe_group_restarts_total") == 1 && on("a", "--again") == 1 && server->device_pid() != 0; }));
}

TEST_F(serving_nodes_upgrade_test, a_program_that_does_not_start_is_undone_on_its_node) {
  const auto [a, b] = start_two("1000", 300);
  expect_told(change(*a, files.rank("leaves", "exit 9")), "exit code 9");
  expect_told(change(*b, files.worker("bad", "--marked --fail-start")), "the fake device does not start");
  expect_told(change(*a, files.worker("other", "--marked --other-limits")), "other limits");
  expect_told(change(*b, sleeps(), 300ms), "300 ms");
  EXPECT_EQ(on("a") + on("b"), 0);
  expect_nothing_lost(300);
  EXPECT_EQ(metric("troupe_group_restarts_total"), 0);
}

TEST_F(serving_nodes_upgrade_test, a_program_that_crashes_at_its_first_steps_is_undone_and_blames_no_request) {
  const auto [a, b] = start_two("8000", 300);
  for (auto* at : {a, b}) {
    const std::string rank = at == a ? "0" : "1";
    expect_told(change(*at, files.worker("crashes" + rank, "--marked --rank " + rank + " --abort-on " + std::to_string('t'))),
                "exit code 77");
  }
  EXPECT_EQ(on("a") + on("b"), 0);
  expect_nothing_lost(300);
}

TEST_F(serving_nodes_upgrade_test, what_fails_in_one_group_is_undone_in_those_before_it) {
  start_head(1, 2, 0, {"--step-us", "8000"});
  auto& a = join("a", 2);
  await_head();
  submit_texts(8, 480);
  ASSERT_TRUE(sinks[0]->wait_for_outputs(5));
  const answer failure = change(a, files.good_once("once", "--marked"));
  expect_told(failure, "replica 1");
  expect_told(failure, "exit code 5");
  EXPECT_TRUE(said("told: replica 0: changed back")) << lines();
  EXPECT_EQ(on("a"), 0);
  expect_nothing_lost(480);
}

// The first group, which runs the new program, is lost while the second one's change fails, and does not come back with it.
TEST_F(serving_nodes_upgrade_test, a_change_is_undone_in_a_group_that_is_down) {
  start_head(1, 2, 0, {"--step-us", "8000"});
  auto& a = join("a", 2);
  await_head();
  submit_texts(8, 480);
  ASSERT_TRUE(sinks[0]->wait_for_outputs(5));
  int round = 0;
  for (const std::string does : {"exit 5", "exec sleep 1000"}) { // what the first group's next ranks do: it is down, or starts in vain
    const std::string name = "once" + std::to_string(round++), second = files.path(name + ".second");
    auto changed =
        change_later(a, files.good_once(name, "--marked", "if mkdir " + second + " 2> /dev/null; then exec sleep 2000; fi; " + does), 3s);
    ASSERT_TRUE(eventually([] { return test::children_with("sleep", "2000") == 1; })) << lines();
    const auto good_one = test::pids_with("--marked", "--of-node-a");
    ASSERT_EQ(good_one.size(), 1U);
    kill(good_one.front(), SIGKILL);
    const answer failure = changed.get();
    expect_told(failure, "replica 1");
    EXPECT_EQ(why(failure).find("not changed back"), std::string::npos) << why(failure);
    expect_told(failure, "; the ranks run the program of before");
    EXPECT_TRUE(eventually([&] { return test::children_with("--of-node-a", "--parent-port") == 2 && on("a") == 0 && sleepers() == 0; }))
        << lines();
  }
  expect_nothing_lost(480);
}

TEST_F(serving_nodes_upgrade_test, nodes_that_ask_at_once_change_one_after_the_other) {
  const auto [a, b] = start_two("8000", 480);
  auto first = change_later(*a, good());
  ASSERT_TRUE(eventually([&] { return said("node a: its ranks are to run another program"); }));
  auto second = change_later(*b, good());
  EXPECT_EQ(first.get(), std::nullopt) << lines();
  EXPECT_EQ(second.get(), std::nullopt) << lines();
  EXPECT_TRUE(said("told: waits: the program of node a is being changed")) << lines();
  EXPECT_EQ(on("a") + on("b"), 2);
  expect_nothing_lost(480);
}

TEST_F(serving_nodes_upgrade_test, a_node_that_waits_for_its_turn_leaves_without_it) {
  const auto [a, b] = start_two("1000", 400);
  auto& spare = join("spare", 1);
  ASSERT_TRUE(eventually([&] { return said("node spare joined"); }));
  auto changed = change_later(*a, sleeps(), 60s);
  ASSERT_TRUE(eventually([] { return sleepers() == 1; }));
  auto waits = change_later(spare, good());
  ASSERT_TRUE(eventually([&] { return said("told: waits"); }));
  spare.leave();
  expect_told(waits.get(), "the node is leaving the cluster");
  ASSERT_TRUE(eventually([&] { return spare.result().has_value(); })) << lines();
  EXPECT_EQ(spare.result()->how, actors::membership_end::left);
  EXPECT_EQ(sleepers(), 1) << "the other change goes on";
  join("c", 1);
  ASSERT_TRUE(eventually([&] { return said("node c joined"); }));
  a->end();
  expect_told(changed.get(), "the node has left the cluster");
  expect_nothing_lost(400);
}

TEST_F(serving_nodes_upgrade_test, a_node_that_is_lost_meanwhile_ends_its_change_and_the_next_waits_for_nothing) {
  const auto [a, b] = start_two("1000", 400);
  join("spare", 1);
  ASSERT_TRUE(eventually([&] { return said("node spare joined"); }));
  auto changed = change_later(*a, sleeps(), 60s);
  ASSERT_TRUE(eventually([] { return sleepers() == 1; }));
  auto waits = change_later(*b, good());
  a->end();
  expect_told(changed.get(), "the node has left the cluster");
  EXPECT_EQ(waits.get(), std::nullopt) << lines();
  EXPECT_TRUE(eventually([&] { return said("node a lost"); }));
  expect_nothing_lost(400);
  EXPECT_EQ(on("b"), 1);
}

TEST_F(serving_nodes_upgrade_test, without_slots_to_come_back_to_a_change_ends_at_once_and_requests_wait) {
  const auto [a, b] = start_two("1000", 400);
  auto changed = change_later(*a, sleeps(), 60s);
  ASSERT_TRUE(eventually([] { return sleepers() == 1; }));
  lose("b");
  expect_told(changed.get(), "node b is lost");
  join("b", 1);
  expect_nothing_lost(400);
  EXPECT_EQ(on("a"), 0);
}

TEST_F(serving_nodes_upgrade_test, the_end_of_the_head_ends_a_change) {
  start_head(1, 1, 0);
  auto& a = join("a", 1);
  await_head();
  auto changed = change_later(a, sleeps(), 60s);
  ASSERT_TRUE(eventually([] { return sleepers() == 1; }));
  server.reset(); // as whoever is cut off sees it: the node's connection ends
  const answer failure = changed.get();
  EXPECT_TRUE(failure == "the server is stopping" || failure == "the head is gone, or cut off, and with it all ranks that ran here")
      << why(failure);
  ASSERT_TRUE(eventually([&] { return a.result().has_value(); }));
  expect_told(change(a, good()), "the head is gone");
}

TEST_F(serving_nodes_upgrade_test, a_node_that_is_to_leave_does_so_after_its_change_and_changes_no_more_before_it_goes) {
  start_head(1, 1, 0, {"--step-us", "2000"});
  auto& a = join("a", 1);
  await_head();
  submit_texts(3, 400);
  ASSERT_TRUE(sinks[0]->wait_for_outputs(5));
  auto changed = change_later(a, good());
  ASSERT_TRUE(eventually([&] { return on("a") == 1; }));
  a.leave();
  ASSERT_TRUE(eventually([&] { return said("when the change of its program is over"); }));
  EXPECT_EQ(metric("troupe_node_leaving", "node=\"a\""), 1);
  EXPECT_EQ(changed.get(), std::nullopt) << lines();
  ASSERT_TRUE(eventually([&] { return said("it goes on there"); })) << lines();
  expect_told(change(a, good("--again")), "is leaving");
  join("b", 1);
  ASSERT_TRUE(eventually([&] { return a.result().has_value(); })) << lines();
  EXPECT_EQ(a.result()->how, actors::membership_end::left);
  expect_nothing_lost(400);
}

TEST_F(serving_nodes_upgrade_test, another_node_that_leaves_while_the_new_program_starts_is_no_failure_of_it) {
  const auto [a, b] = start_two("1000", 400);
  auto& spare = join("spare", 1);
  ASSERT_TRUE(eventually([&] { return said("node spare joined"); }));
  const std::string first = files.path("first");
  auto changed = change_later(
      *a, files.rank("slow", "if mkdir " + first + " 2> /dev/null; then exec sleep 1000; fi; exec " TROUPE_FAKE_WORKER " --marked \"$@\""));
  ASSERT_TRUE(eventually([] { return sleepers() == 1; }));
  b->leave();
  EXPECT_EQ(changed.get(), std::nullopt) << lines();
  EXPECT_EQ(on("a"), 1);
  EXPECT_EQ(spare.ranks(), 1);
  EXPECT_TRUE(eventually([&] { return b->result().has_value(); })) << lines();
  EXPECT_EQ(b->result()->how, actors::membership_end::left);
  expect_nothing_lost(400);
}

TEST_F(serving_nodes_upgrade_test, a_node_that_is_to_leave_and_ends_during_its_change_is_not_missed) {
  const auto [a, b] = start_two("1000", 400);
  join("spare", 1);
  ASSERT_TRUE(eventually([&] { return said("node spare joined"); }));
  auto changed = change_later(*a, sleeps(), 60s);
  ASSERT_TRUE(eventually([] { return sleepers() == 1; }));
  a->leave();
  ASSERT_TRUE(eventually([&] { return metric("troupe_node_drains_total") == 1; })) << lines();
  a->end();
  expect_told(changed.get(), "the node has left the cluster");
  ASSERT_TRUE(eventually([&] { return said("node a lost"); }));
  EXPECT_EQ(metric("troupe_node_missing", "node=\"a\""), 0);
  EXPECT_EQ(metric("troupe_node_drains_total"), 1);
  expect_nothing_lost(400);
}

// The group would not come back: it stays as it is for as long as the other node does.
TEST_F(serving_nodes_upgrade_test, no_group_pauses_that_has_no_slots_to_come_back_to) {
  const auto [a, b] = start_two("1000", 400);
  b->leave();
  ASSERT_TRUE(eventually([&] { return said("it goes on there"); }));
  expect_told(change(*a, good()), "no other slots to come back to");
  EXPECT_EQ(on("a"), 0);
  join("c", 1);
  ASSERT_TRUE(eventually([&] { return b->result().has_value(); })) << lines();
  EXPECT_EQ(change(*a, good()), std::nullopt) << lines();
  expect_nothing_lost(400);
}

TEST_F(serving_nodes_upgrade_test, a_change_waits_for_a_group_that_is_away_up_to_its_deadline) {
  const auto [a, b] = start_two("1000", 400);
  lose("b");
  ASSERT_TRUE(eventually([&] { return said("have 1 for"); })) << lines();
  expect_told(change(*a, good(), 200ms), "not up within 200 ms");
  auto changed = change_later(*a, good("--again"));
  join("b", 1);
  EXPECT_EQ(changed.get(), std::nullopt) << lines();
  EXPECT_EQ(on("a"), 0) << "what was called off does not come later";
  EXPECT_EQ(on("a", "--again"), 1);
  expect_nothing_lost(400);
}

TEST_F(serving_nodes_upgrade_test, a_spare_takes_a_program_that_its_later_ranks_run) {
  start_two("1000", 400);
  auto& spare = join("spare", 1);
  ASSERT_TRUE(eventually([&] { return said("node spare joined"); }));
  EXPECT_EQ(change(spare, good()), std::nullopt) << lines();
  EXPECT_TRUE(said("told: no rank runs there now")) << lines();
  lose("b");
  EXPECT_TRUE(eventually([&] { return on("spare") == 1; })) << lines();
  expect_nothing_lost(400);
}

TEST_F(serving_nodes_upgrade_test, a_head_without_slots_says_where_programs_are_changed) {
  start_two("1000", 60);
  const auto failure = server->replace_program(found(good()), 1s, [](const std::string&) {});
  expect_told(failure, "troupe node --upgrade");
  expect_nothing_lost(60);
}

TEST_F(serving_nodes_upgrade_test, a_deadline_out_of_bounds_is_refused_with_the_bounds) {
  const auto [a, b] = start_two("1000", 60);
  expect_told(change(*a, good(), 0ms), "1 ms to 86400000 ms");
  expect_nothing_lost(60);
}

} // namespace
} // namespace troupe
