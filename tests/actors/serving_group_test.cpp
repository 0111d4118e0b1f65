// Groups of several ranks in this process: every rank gets every plan, and a rank that fails in any way takes its group along, not the
// work.
#include <array>
#include <chrono>
#include <semaphore>
#include <thread>

#include "tests/actors/group_fixture.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;
using test::eventually;

class serving_group_test : public test::group_test, public ::testing::WithParamInterface<int> {
 protected:
  int ranks() const { return GetParam(); }
  // Runs load while `fault` strikes each rank in turn; the group must be formed anew each time and every stream be the reference.
  template <class F>
  void strike_every_rank(F fault) {
    options.max_restarts = 100;
    faults->step_us = 300;
    shape(ranks());
    start_group();
    for (int rank = 0; rank < ranks(); ++rank) {
      group->rank = rank;
      fault();
      submit_texts(6, 40);
      expect_texts(40);
      EXPECT_EQ(metric("troupe_group_restarts_total"), rank + 1) << log();
    }
    EXPECT_EQ(metric("troupe_requests_total", "failed"), 0);
    expect_idle();
  }
};

class serving_group_blocks_test : public test::group_test {};

// Two stages: the second works on a plan once the first is done with it, which meanwhile goes on to the next.
class fake_stage final : public step_executor {
 public:
  using durations = std::vector<std::chrono::milliseconds>;
  fake_stage(bool last, durations times, executor_info info, std::shared_ptr<test::device_faults> faults,
             std::shared_ptr<std::counting_semaphore<>> passed)
      : last_(last), times_(std::move(times)), passed_(std::move(passed)), inner_(info, std::move(faults)) {}

  executor_info info() const override { return inner_.info(); }
  void submit(const step_plan& plan, deliver_fn deliver) override {
    if (last_) passed_->acquire();
    if (next_ < times_.size()) std::this_thread::sleep_for(times_[next_++]);
    if (!last_) passed_->release();
    inner_.submit(plan, [&](step_outcome outcome) {
      if (auto* result = std::get_if<step_result>(&outcome); result != nullptr && !last_) result->outputs.clear();
      deliver(std::move(outcome));
    });
  }

 private:
  bool last_;
  durations times_; // of the first plans
  std::size_t next_ = 0;
  std::shared_ptr<std::counting_semaphore<>> passed_;
  test::fake_device inner_;
};

class serving_ranks_test : public serving_group_test {}; // what one rank alone cannot do

class serving_stages_test : public test::group_test {
 protected:
  void start_stages(fake_stage::durations first, fake_stage::durations last) {
    shape(2);
    start_group([this, passed = std::make_shared<std::counting_semaphore<>>(0), times = std::array{first, last}](
                    const actors::rank_start& place, const actors::publish_rendezvous& publish) -> std::unique_ptr<step_executor> {
      if (place.rank == 0) publish("nowhere");
      return std::make_unique<fake_stage>(place.rank == 1, times[static_cast<std::size_t>(place.rank)], device, faults, passed);
    });
  }
};

TEST_P(serving_group_test, every_rank_gets_every_plan_and_the_leader_speaks) {
  shape(ranks());
  start_group();
  submit_texts(20, 60);
  expect_texts(60);
  expect_idle();
  const std::int64_t steps = group->steps[0][0];
  EXPECT_GT(steps, 60);
  for (int rank = 0; rank < ranks(); ++rank) {
    EXPECT_TRUE(eventually([&] { return group->steps[0][rank] == group->steps[0][0]; }));
    EXPECT_TRUE(eventually([&] { return rank_metric("troupe_rank_step_seconds_count", rank) == static_cast<double>(steps); }));
    EXPECT_NEAR(rank_metric("troupe_rank_collective_wait_seconds_total", rank), static_cast<double>(steps) * 1e-6, 1e-7);
  }
  EXPECT_EQ(group_metric("troupe_group_up", 0), 1);
  server->stop();
  EXPECT_EQ(group->gone, ranks());
}

TEST_P(serving_group_test, a_rank_that_fails) {
  strike_every_rank([&] { group->fail_in = 7; });
}

TEST_P(serving_group_test, a_rank_that_fails_in_the_first_step) {
  strike_every_rank([&] { group->fail_in = 0; });
}

TEST_P(serving_ranks_test, a_rank_that_stands_still_is_missed_by_the_others) {
  group->barrier_limit = 200ms;
  shape(ranks());
  start_group();
  group->rank = ranks() - 1;
  group->hang_in = 5;
  submit_texts(6, 40);
  expect_texts(40);
  EXPECT_EQ(metric("troupe_group_restarts_total"), 1) << log();
  EXPECT_NE(log().find("in time"), std::string::npos) << log();
  EXPECT_EQ(metric("troupe_collective_faults_total", "deadline"), 1) << "once, however many ranks tell of it";
  EXPECT_EQ(metric("troupe_collective_faults_total", "peer_lost"), 0);
}

TEST_P(serving_group_test, a_rank_that_stands_still_while_all_wait_is_noticed_by_the_step_deadline) {
  options.step_deadline = 400ms;
  shape(ranks());
  start_group();
  group->rank = ranks() - 1;
  group->hang_in = 5;
  submit_texts(6, 40);
  expect_texts(40);
  EXPECT_EQ(metric("troupe_group_restarts_total"), 1) << log();
}

TEST_P(serving_ranks_test, a_rank_whose_answer_does_not_come_is_late) {
  options.rank_deadline = 300ms;
  shape(ranks());
  start_group();
  for (int rank : {0, ranks() - 1}) { // one that only acknowledges, and the leader
    group->rank = rank;
    group->late_in = 5;
    const auto began = std::chrono::steady_clock::now();
    submit_texts(4, 40);
    expect_texts(40);
    EXPECT_LT(std::chrono::steady_clock::now() - began, 20s) << "not by the step deadline";
    EXPECT_NE(log().find("rank " + std::to_string(rank) + ": no answer"), std::string::npos) << log();
  }
  EXPECT_EQ(metric("troupe_group_restarts_total"), 2) << log();
}

TEST_F(serving_stages_test, a_stage_that_still_works_on_an_earlier_plan_is_not_late) {
  options.rank_deadline = 500ms;
  start_stages({700ms, 5ms}, {700ms, 250ms}); // the first answers plan 2 long before the last begins it
  submit_texts(1, 10);
  expect_texts(10);
  EXPECT_EQ(metric("troupe_group_restarts_total"), 0) << log();
}

TEST_F(serving_stages_test, stages_are_not_late_against_each_other) {
  options.stages = 2;
  start_stages({}, fake_stage::durations(20, 10ms)); // the first answers each plan some 10 ms before the last
  submit_texts(1, 10);
  expect_texts(10);
  EXPECT_GE(rank_metric("troupe_rank_step_seconds_sum", 1), 0.09);
  EXPECT_EQ(rank_metric("troupe_rank_lag_seconds_total", 0) + rank_metric("troupe_rank_lag_seconds_total", 1), 0);
}

TEST_P(serving_group_test, a_slow_rank_is_told_and_not_replaced) {
  shape(ranks());
  start_group();
  group->rank = ranks() - 1;
  group->slow_us = 2000;
  submit_texts(4, 40);
  expect_texts(40);
  EXPECT_EQ(metric("troupe_group_restarts_total"), 0);
  EXPECT_GE(rank_metric("troupe_rank_step_seconds_sum", ranks() - 1), 0.08);
}

TEST_P(serving_group_test, requests_that_kill_devices_are_quarantined_alone) {
  options.max_restarts = 10;
  faults->poison = 'Z';
  shape(ranks());
  start_group();
  submit_texts(5, 60);
  auto poisoned = submit(request("Z", 60));
  ASSERT_TRUE(poisoned->wait());
  EXPECT_TRUE(poisoned->failed);
  expect_texts(60);
  EXPECT_EQ(metric("troupe_requests_total", "failed"), 1);
}

TEST_P(serving_group_test, a_group_that_is_lost_too_often_is_given_up) {
  options.max_restarts = 1;
  faults->poison = 'Z';
  shape(ranks());
  start_group();
  for (int i = 0; i < 4; ++i) submit(request("Z" + std::to_string(i), 10));
  for (auto& sink : sinks) {
    ASSERT_TRUE(sink->wait());
    EXPECT_TRUE(sink->failed);
  }
  EXPECT_TRUE(eventually([&] { return !server->status().live; }));
}

TEST_P(serving_group_test, a_rank_that_does_not_start_again_is_tried_again) {
  shape(ranks());
  start_group();
  group->rank = ranks() - 1;
  group->starts_to_fail = 2;
  group->fail_in = 5;
  submit_texts(4, 40);
  expect_texts(40);
  EXPECT_EQ(metric("troupe_group_restarts_total"), 3) << log();
  EXPECT_EQ(metric("troupe_group_failed_starts_total"), 2) << log();
  EXPECT_NE(log().find("does not start"), std::string::npos) << log();
}

TEST_P(serving_group_test, a_rank_that_starts_slowly_is_waited_for) {
  group->rank = ranks() - 1;
  group->slow_start_ms = 400;
  shape(ranks());
  start_group();
  submit_texts(2, 20);
  expect_texts(20);
}

TEST_P(serving_group_test, a_rank_that_is_not_ready_in_time_is_an_error_of_start) {
  options.start_deadline = 200ms;
  group->rank = ranks() - 1;
  group->slow_start_ms = 1000;
  shape(ranks());
  EXPECT_THROW(start_group(), std::runtime_error);
}

TEST_P(serving_ranks_test, ranks_with_different_limits_are_refused) {
  group->rank = ranks() - 1;
  group->other_limits = true;
  shape(ranks());
  try {
    start_group();
    FAIL() << "started";
  } catch (const std::runtime_error& e) {
    EXPECT_NE(std::string(e.what()).find("rank " + std::to_string(ranks() - 1) + " has other limits"), std::string::npos) << e.what();
  }
}

TEST_P(serving_group_test, the_smallest_pool_counts) {
  group->rank = ranks() - 1;
  group->missing_blocks = 200;
  shape(ranks());
  start_group();
  submit_texts(12, 40);
  expect_texts(40);
  const auto unused = [this] { return metric("troupe_kv_blocks", "free") + metric("troupe_kv_blocks", "cached"); };
  EXPECT_TRUE(eventually([&] { return unused() == device.num_blocks - 200; }))
      << unused(); // the scheduler tells a moment after the last text
  EXPECT_EQ(server->model().max_model_len, (device.num_blocks - 200) * device.block_size);
}

TEST_P(serving_group_test, more_plans_in_flight_change_no_token) {
  options.plans_in_flight = 4;
  group->fail_in = 9;
  shape(ranks());
  start_group();
  submit_texts(10, 60);
  expect_texts(60);
}

TEST_P(serving_group_test, stops_while_every_rank_is_busy) {
  faults->step_us = 3000;
  shape(ranks());
  start_group();
  submit_texts(4, 400);
  ASSERT_TRUE(sinks[0]->wait_for_outputs(2));
  server->stop();
  EXPECT_EQ(group->gone, ranks());
}

INSTANTIATE_TEST_SUITE_P(ranks, serving_group_test, ::testing::Values(1, 2, 4));
INSTANTIATE_TEST_SUITE_P(ranks, serving_ranks_test, ::testing::Values(2, 4));

TEST(group_options, a_leader_outside_the_group_is_refused) {
  actors::serving_options options;
  options.group_size = 2;
  options.leader = 2;
  actors::serving_parts parts;
  parts.tokens = std::make_shared<const test::byte_tokenizer>();
  EXPECT_THROW(actors::serving::start(options, std::move(parts)), std::runtime_error);
}

// The memory that is free at a second start is another than at the first.
TEST_F(serving_group_blocks_test, a_group_formed_anew_has_as_many_blocks_as_it_had_at_first) {
  options.max_restarts = 10;
  shape(2);
  std::atomic<int> starts{0};
  start_group([&](const actors::rank_start& place, const actors::publish_rendezvous& publish) {
    executor_info info = device;
    EXPECT_EQ(place.num_blocks.has_value(), place.generation > 1);
    info.num_blocks = place.generation == 1 ? 100 + 10 * place.rank : place.num_blocks.value_or(60); // the group has the fewest
    ++starts;
    return std::make_unique<test::fake_rank>(place, options.leader, info, faults, group, publish);
  });
  group->fail_in = 20;
  submit_texts(6, 40);
  expect_texts(40);
  EXPECT_EQ(metric("troupe_group_restarts_total"), 1) << log();
  EXPECT_EQ(starts, 4);
  device.num_blocks = 100;
  expect_idle();
}

} // namespace
} // namespace troupe
