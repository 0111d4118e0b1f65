// Sequences that leave one scheduler and go on at another.
#include <gtest/gtest.h>

#include "tests/scheduler/scheduler_testing.hpp"

namespace troupe {
namespace {

using namespace test;

// As an actor does when a group is not back in time.
void move_all(bench& from, bench& to, loss_cause cause = loss_cause::killed) {
  from.lose(cause);
  for (sequence_progress& s : from.sched.take_all()) to.sched.readmit(std::move(s));
  to.now = std::max(to.now, from.now);
}

std::vector<token_id> joined(bench& a, bench& b, sequence_id id) {
  auto all = a.tokens[id];
  all.insert(all.end(), b.tokens[id].begin(), b.tokens[id].end());
  return all;
}

TEST(Readmit, TheStreamGoesOnWhereItWas) {
  bench a(device()), b(device());
  for (std::uint64_t id = 1; id <= 5; ++id) {
    auto r = request(id, {5, static_cast<token_id>(id)}, 30);
    r.sampling.temperature = id % 2 == 0 ? 1.0F : 0.0F;
    r.sampling.seed = id;
    ASSERT_FALSE(a.sched.add(r, 0));
  }
  for (int i = 0; i < 12; ++i) a.turn();
  move_all(a, b);
  EXPECT_EQ(a.sched.stats().running + a.sched.stats().waiting, 0);
  b.run();
  for (std::uint64_t id = 1; id <= 5; ++id) {
    EXPECT_FALSE((a.tokens[{id, 0}]).empty());
    bench whole(device());
    auto r = request(id, {5, static_cast<token_id>(id)}, 30);
    r.sampling.temperature = id % 2 == 0 ? 1.0F : 0.0F;
    r.sampling.seed = id;
    ASSERT_FALSE(whole.sched.add(r, 0));
    whole.run();
    EXPECT_EQ(joined(a, b, {id, 0}), (whole.tokens[{id, 0}]));
    EXPECT_EQ((b.ends[{id, 0}].output_tokens), 30);
  }
}

TEST(Readmit, IsNotRefusedByAFullQueue) {
  bench a(device()), b(device(), 2, 1);
  for (std::uint64_t id = 1; id <= 4; ++id) ASSERT_FALSE(a.sched.add(request(id, {1, 2}, 5), 0));
  ASSERT_FALSE(b.sched.add(request(9, {3}, 5), 0));
  ASSERT_TRUE(b.sched.add(request(10, {3}, 5), 0)) << "its queue is full";
  move_all(a, b);
  b.run();
  for (std::uint64_t id = 1; id <= 4; ++id) EXPECT_EQ((b.tokens[{id, 0}]), reference({1, 2}, 5));
}

TEST(Readmit, KeepsItsPlaceInTheQueue) {
  bench a(device(64, 4, 1)), b(device(64, 4, 1));
  ASSERT_FALSE(b.sched.add(request(5, {1}, 3), 0));
  ASSERT_FALSE(a.sched.add(request(2, {1}, 3), 0)); // arrived before 5
  move_all(a, b);
  while (b.ends.empty()) ASSERT_TRUE(b.turn());
  EXPECT_EQ(b.ends.begin()->first.request, 2U);
}

TEST(Readmit, TwoFaultsInARowQuarantineAcrossReplicas) {
  bench a(device()), b(device());
  ASSERT_FALSE(a.sched.add(request(1, {1, 2}, 20), 0));
  ASSERT_TRUE(a.sched.schedule(1));
  move_all(a, b, loss_cause::fault);
  EXPECT_TRUE(a.ends.empty());
  ASSERT_TRUE(b.sched.schedule(2));
  b.lose(loss_cause::fault);
  ASSERT_EQ((b.ends.count({1, 0})), 1U);
  EXPECT_EQ((b.ends[{1, 0}].finish), finish_reason::failed);
}

TEST(Readmit, DeadlinesMoveToo) {
  bench a(device()), b(device());
  auto r = request(1, {1, 2}, 20);
  r.total_deadline_ns = 5000;
  ASSERT_FALSE(a.sched.add(r, 0));
  move_all(a, b);
  EXPECT_FALSE(a.sched.next_deadline_ns());
  EXPECT_EQ(b.sched.next_deadline_ns(), 5000U);
  b.absorb(b.sched.expire(5000));
  EXPECT_EQ((b.ends[{1, 0}].finish), finish_reason::failed);
}

TEST(Readmit, WhatRunsCannotBeTaken) {
  bench a(device());
  ASSERT_FALSE(a.sched.add(request(1, {1, 2}, 20), 0));
  ASSERT_TRUE(a.sched.schedule(1));
  EXPECT_THROW(a.sched.take_all(), std::logic_error);
}

} // namespace
} // namespace troupe
