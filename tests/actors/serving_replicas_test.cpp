// Several groups behind one gateway: who gets what, and what becomes of requests whose group is lost.
#include <chrono>
#include <thread>

#include "tests/actors/group_fixture.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;
using test::eventually;

class serving_replicas_test : public test::group_test {
 protected:
  void lose_replica(int replica) {
    group->replica = replica;
    group->rank = 0;
    group->fail_in = 0;
  }
  std::int64_t steps_of(int replica) const { return group->steps[replica][0]; }
};

TEST_F(serving_replicas_test, requests_spread_over_all_replicas) {
  shape(2, 3);
  start_group();
  faults->step_us = 200;
  submit_texts(30, 60, 60); // all of one length: a replica might have only such as end early
  expect_texts(60, 60);
  for (int replica = 0; replica < 3; ++replica) {
    EXPECT_GE(steps_of(replica), 60) << replica;
    EXPECT_EQ(group_metric("troupe_group_up", replica), 1);
  }
  EXPECT_TRUE(eventually([&] { return metric("troupe_requests_running") == 0 && server->active_requests() == 0; }));
  EXPECT_TRUE(server->status().ready);
  EXPECT_EQ(server->status().reason, "");
}

TEST_F(serving_replicas_test, a_prompt_goes_where_its_prefix_is) {
  shape(1, 3);
  start_group();
  const std::string system = "a system prompt that many requests begin with, long enough for several blocks: ";
  auto first = submit(request(system + "first", 8));
  expect_stream(*first, system + "first", 8);
  for (int i = 0; i < 6; ++i) {
    auto next = submit(request(system + std::to_string(i), 8));
    expect_stream(*next, system + std::to_string(i), 8);
    EXPECT_GT(next->usage->cached_tokens, 60);
  }
  int used = 0;
  for (int replica = 0; replica < 3; ++replica) used += steps_of(replica) > 0 ? 1 : 0;
  EXPECT_EQ(used, 1) << "one after the other, all fit the replica that holds the prefix";
}

TEST_F(serving_replicas_test, choices_of_a_request_stay_together_and_count_as_load) {
  shape(1, 2);
  start_group();
  faults->step_us = 500;
  auto many = request("many choices", 40);
  many.n = 6;
  auto sink = submit(many);
  ASSERT_TRUE(sink->wait_for_outputs(6));
  for (int i = 0; i < 3; ++i) submit_texts(1, 20);
  ASSERT_TRUE(sink->wait());
  for (std::int32_t i = 0; i < 6; ++i) EXPECT_EQ(sink->choices[i].text, expected_text("many choices", 40));
  for (std::size_t i = 0; i < texts.size(); ++i) expect_stream(*sinks[i + 1], texts[i], 20);
  EXPECT_GT(steps_of(0), 0);
  EXPECT_GT(steps_of(1), 0);
}

TEST_F(serving_replicas_test, the_other_replica_does_not_notice) {
  shape(2, 2);
  start_group();
  faults->step_us = 500;
  submit_texts(8, 80);
  ASSERT_TRUE(sinks[0]->wait_for_outputs(5));
  lose_replica(0);
  expect_texts(80);
  EXPECT_EQ(group_metric("troupe_group_restarts_total", 0), 1) << log();
  EXPECT_EQ(group_metric("troupe_group_restarts_total", 1), 0) << log();
  EXPECT_EQ(group_metric("troupe_group_epoch", 1), 1);
  EXPECT_GT(group_metric("troupe_group_epoch", 0), 1);
}

TEST_F(serving_replicas_test, requests_of_a_group_that_does_not_come_back_go_on_elsewhere) {
  options.move_after = 100ms;
  options.max_restarts = 100;
  shape(1, 2);
  start_group();
  faults->step_us = 500;
  submit_texts(8, 80);
  ASSERT_TRUE(sinks[0]->wait_for_outputs(5));
  group->starts_to_fail = 8; // with the pauses between them, more than a quarter of a minute
  lose_replica(0);
  ASSERT_TRUE(eventually([&] { return log().find("device lost") != std::string::npos; }));
  EXPECT_TRUE(server->status().ready);
  EXPECT_EQ(server->status().reason, "1 of 2 replicas are up");
  const auto began = std::chrono::steady_clock::now();
  expect_texts(80);
  EXPECT_LT(std::chrono::steady_clock::now() - began, 12s) << "they did not wait for their own group";
  EXPECT_GT(metric("troupe_moved_sequences_total"), 0);
  submit_texts(2, 10); // new ones do not wait for it either
  expect_stream(*sinks.back(), texts.back(), 10);
}

TEST_F(serving_replicas_test, a_group_that_is_lost_again_has_its_full_time_to_come_back) {
  options.move_after = 4s;
  options.max_restarts = 100;
  shape(1, 2);
  start_group();
  faults->step_us = 25'000;
  submit_texts(8, 200);
  ASSERT_TRUE(sinks[7]->wait_for_outputs(2));
  lose_replica(0);
  ASSERT_TRUE(eventually([&] { return log().find("device lost") != std::string::npos; }));
  const auto first = std::chrono::steady_clock::now();
  ASSERT_TRUE(eventually([&] { return log().find("up again") != std::string::npos; }));
  std::this_thread::sleep_until(first + 2500ms);
  submit_texts(8, 200);
  ASSERT_TRUE(sinks[15]->wait_for_outputs(2));
  group->starts_to_fail = 7; // more than 10 s with the pauses between them
  lose_replica(0);
  ASSERT_TRUE(eventually([&] { return group_metric("troupe_group_up", 0) == 0; })) << log();
  std::this_thread::sleep_until(first + 5s); // the first loss is more than four seconds ago, the second is not
  EXPECT_EQ(group_metric("troupe_group_up", 0), 0) << log();
  EXPECT_EQ(metric("troupe_moved_sequences_total"), 0) << log();
  expect_texts(200);
  EXPECT_GT(metric("troupe_moved_sequences_total"), 0) << log();
}

TEST_F(serving_replicas_test, a_group_that_is_given_up_leaves_its_requests_to_the_others) {
  options.max_restarts = 0;
  options.move_after = 100ms;
  shape(2, 3);
  start_group();
  faults->step_us = 500;
  submit_texts(12, 80);
  ASSERT_TRUE(sinks[0]->wait_for_outputs(5));
  lose_replica(0);
  expect_texts(80);
  EXPECT_TRUE(server->status().ready);
  EXPECT_EQ(server->status().reason, "2 of 3 replicas are up");
  EXPECT_NE(log().find("replica 0: given up"), std::string::npos) << log();
  EXPECT_EQ(group_metric("troupe_group_up", 0), 0);
  EXPECT_GT(metric("troupe_moved_sequences_total"), 0);
  submit_texts(6, 10);
  for (std::size_t i = texts.size() - 6; i < texts.size(); ++i) expect_stream(*sinks[i], texts[i], 10);
}

TEST_F(serving_replicas_test, when_the_last_group_is_given_up_nobody_waits_in_silence) {
  options.max_restarts = 0;
  options.move_after = 50ms;
  shape(1, 2);
  start_group();
  faults->step_us = 500;
  submit_texts(8, 400);
  ASSERT_TRUE(sinks[7]->wait_for_outputs(2));
  lose_replica(0);
  ASSERT_TRUE(eventually([&] { return log().find("replica 0: given up") != std::string::npos; }));
  lose_replica(1);
  for (auto& sink : sinks) ASSERT_TRUE(sink->wait());
  EXPECT_TRUE(eventually([&] { return !server->status().live; }));
  auto late = submit(request("late"));
  ASSERT_TRUE(late->wait());
  EXPECT_EQ(late->failed->kind, error_kind::unavailable);
}

TEST_F(serving_replicas_test, a_request_that_kills_groups_is_quarantined_wherever_it_goes) {
  options.max_restarts = 20;
  options.move_after = 50ms;
  faults->poison = 'Z';
  shape(2, 2);
  start_group();
  faults->step_us = 300;
  submit_texts(8, 60);
  auto poisoned = submit(request("Z", 60));
  ASSERT_TRUE(poisoned->wait());
  EXPECT_TRUE(poisoned->failed);
  expect_texts(60);
  EXPECT_EQ(metric("troupe_requests_total", "failed"), 1);
  EXPECT_LE(metric("troupe_device_restarts_total"), 3) << log();
}

TEST_F(serving_replicas_test, cancelling_moved_requests_ends_them) {
  options.move_after = 50ms;
  options.max_restarts = 100;
  shape(1, 2);
  start_group();
  faults->step_us = 1000;
  submit_texts(10, 400);
  ASSERT_TRUE(sinks[9]->wait_for_outputs(2));
  group->starts_to_fail = 5;
  lose_replica(0);
  for (request_id id = 1; id <= last_id; ++id) { // some before they move, some after
    server->cancel(id);
    std::this_thread::sleep_for(15ms);
  }
  for (auto& sink : sinks) ASSERT_TRUE(sink->wait());
  EXPECT_TRUE(eventually([&] { return metric("troupe_requests_running") == 0 && metric("troupe_requests_waiting") == 0; }))
      << "a scheduler works on for nobody";
  EXPECT_EQ(server->active_requests(), 0U);
}

TEST_F(serving_replicas_test, a_replica_that_cannot_start_is_an_error_of_start) {
  shape(1, 2);
  group->replica = 1;
  group->other_limits = true;
  try {
    start_group();
    FAIL() << "started";
  } catch (const std::runtime_error& e) {
    EXPECT_STREQ(e.what(), "replica 1 has other limits than replica 0");
  }
}

TEST_F(serving_replicas_test, the_smallest_replica_bounds_what_is_accepted) {
  shape(1, 2);
  group->replica = 1;
  group->missing_blocks = 200;
  start_group();
  EXPECT_EQ(server->model().max_model_len, 56 * device.block_size);
}

} // namespace
} // namespace troupe
