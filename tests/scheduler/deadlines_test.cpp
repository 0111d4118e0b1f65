#include <gtest/gtest.h>

#include "tests/scheduler/scheduler_testing.hpp"

namespace troupe {
namespace {

using namespace test;

sequence_request with_deadlines(std::uint64_t id, std::optional<std::uint64_t> queue, std::optional<std::uint64_t> total) {
  auto r = request(id, {static_cast<token_id>(id), 1}, 50);
  r.queue_deadline_ns = queue;
  r.total_deadline_ns = total;
  return r;
}

TEST(Deadlines, WhoWaitsTooLongTimesOutAndTheOthersStay) {
  bench b(device(64, 4, 1)); // one slot
  ASSERT_FALSE(b.sched.add(with_deadlines(1, 2000, {}), 1000));
  ASSERT_FALSE(b.sched.add(with_deadlines(2, 5000, {}), 1000));
  ASSERT_FALSE(b.sched.add(with_deadlines(3, {}, {}), 1000));
  b.turn();
  EXPECT_EQ(b.sched.next_deadline_ns(), 2000U);
  EXPECT_TRUE(b.sched.expire(4999).empty()); // 1 was scheduled in time
  EXPECT_EQ(b.sched.next_deadline_ns(), 5000U);
  b.absorb(b.sched.expire(5000));
  ASSERT_EQ(b.ends.size(), 1U);
  const sequence_update& end = b.ends[{2, 0}];
  EXPECT_EQ(end.finish, finish_reason::failed);
  EXPECT_EQ(end.failure->kind, error_kind::timed_out);
  EXPECT_EQ(end.failure->param, "queue_timeout_ms");
  EXPECT_FALSE(b.sched.next_deadline_ns());
  b.run();
  for (std::uint64_t id : {1, 3}) EXPECT_EQ((b.tokens[{id, 0}]), reference({static_cast<token_id>(id), 1}, 50));
}

TEST(Deadlines, TheTotalOneEndsARunningSequenceAndItsSlotAndBlocksAreFree) {
  bench b(device(64, 4, 1));
  ASSERT_FALSE(b.sched.add(with_deadlines(1, 1500, 2000), 1000));
  ASSERT_FALSE(b.sched.add(with_deadlines(2, {}, {}), 1000));
  for (int i = 0; i < 5; ++i) b.turn();
  b.absorb(b.sched.expire(2000));
  EXPECT_EQ((b.ends[{1, 0}].failure->param), "timeout_ms");
  EXPECT_EQ(b.sched.stats().running, 0);
  b.check_blocks();
  b.run(); // rows of 1 that are in flight are dropped
  const auto all = reference({1, 1}, 50);
  const auto& got = b.tokens[{1, 0}];
  EXPECT_EQ(got, std::vector<token_id>(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(got.size())));
  EXPECT_EQ((b.tokens[{2, 0}]), reference({2, 1}, 50));
}

TEST(Deadlines, BothAtOnceEndASequenceOnce) {
  bench b(device());
  ASSERT_FALSE(b.sched.add(with_deadlines(1, 2000, 2000), 1000));
  EXPECT_EQ(b.sched.expire(3000).size(), 1U);
  EXPECT_TRUE(b.sched.expire(4000).empty());
}

TEST(Deadlines, NothingIsLeftOfWhatEndedBefore) {
  bench b(device());
  ASSERT_FALSE(b.sched.add(with_deadlines(1, 1'000'000, 1'000'000), 1000));
  ASSERT_FALSE(b.sched.add(with_deadlines(2, 1'000'000, 2'000'000), 1000));
  b.sched.remove({1, 0});
  b.run();
  EXPECT_FALSE(b.sched.next_deadline_ns());
  EXPECT_TRUE(b.sched.expire(3'000'000).empty());
}

// A sequence that lost its device is back in the queue, but it was served: only the total deadline holds for it.
TEST(Deadlines, TheQueuesDeadlineIsForTheFirstScheduling) {
  bench b(device());
  ASSERT_FALSE(b.sched.add(with_deadlines(1, 2000, 9000), 1000));
  b.turn();
  b.lose(loss_cause::killed);
  EXPECT_TRUE(b.sched.expire(2500).empty());
  EXPECT_EQ(b.sched.expire(9000).size(), 1U);
}

} // namespace
} // namespace troupe
