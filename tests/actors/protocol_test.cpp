// Messages survive the wire bit for bit, floats that no serializer could carry included.
#include <gtest/gtest.h>
#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/binary_deserializer.hpp>
#include <caf/binary_serializer.hpp>
#include <caf/deep_to_string.hpp>
#include <caf/stream_deserializer.hpp>

#include <limits>

#include "actors/protocol.hpp"
#include "actors/system.hpp"

namespace troupe::actors {
namespace {

class protocol_test : public ::testing::Test {
 protected:
  template <class T>
  T over_the_wire(T x) {
    std::vector<char> bytes;
    caf::binary_serializer out(system_, bytes);
    EXPECT_FALSE(static_cast<bool>(out(x)));
    T back{};
    caf::binary_deserializer in(system_, bytes);
    EXPECT_FALSE(static_cast<bool>(in(back)));
    return back;
  }

  system_config config_{false};
  caf::actor_system system_{config_};
};

sampling_params odd_sampling() {
  sampling_params p;
  p.temperature = std::numeric_limits<float>::infinity();
  p.top_p = std::numeric_limits<float>::denorm_min();
  p.min_p = -0.0F;
  p.seed = std::numeric_limits<std::uint64_t>::max();
  p.logit_bias = {{5, -std::numeric_limits<float>::infinity()}, {7, 1.5F}};
  p.suppressed = {1, 2};
  p.top_logprobs = 0;
  return p;
}

TEST_F(protocol_test, a_plan_arrives_as_it_was_sent) {
  step_plan plan;
  plan.epoch = 3;
  plan.step = 1ULL << 60;
  plan.closed = {4};
  plan.opened = {{2, 17, odd_sampling()}};
  plan.grants = {{2, 1, {9, 8}}};
  plan.copies = {{1, 2}};
  plan.items = {{2, work_kind::verify, 5, 3, true, std::nullopt, 4}, {1, work_kind::prefill, 0, 2, false, 20}};
  plan.tokens = {-1, 1 << 30};
  EXPECT_EQ(over_the_wire(plan), plan);
}

TEST_F(protocol_test, a_result_arrives_as_it_was_sent_infinities_included) {
  step_result result;
  result.epoch = 1;
  result.step = 2;
  slot_output out;
  out.slot = 3;
  out.tokens = {7};
  out.scores = {{{7, -std::numeric_limits<float>::infinity()}, {{8, -0.5F}}}};
  out.prompt_scores = out.scores;
  out.numeric_fault = true;
  out.proposals = {9, 10};
  result.outputs = {out};
  result.times = {1, 2, 3, 4, 5, 6, {{kernel_group::attention, 7}, {kernel_group::sampling, 8}}, 9, 10};
  EXPECT_EQ(over_the_wire(result), result);
}

TEST_F(protocol_test, what_a_device_can_arrives_as_it_was_sent) {
  const executor_info info{1, 2, 3, 4, 5, 6, 7, 8};
  EXPECT_EQ(over_the_wire(info), info);
}

TEST_F(protocol_test, a_rank_and_its_answers_arrive_as_they_were_sent) {
  const auto place = over_the_wire(actors::rank_start{1, 2, 4, 1ULL << 60, "127.0.0.1 4711"});
  EXPECT_EQ(place.replica, 1);
  EXPECT_EQ(place.rank, 2);
  EXPECT_EQ(place.size, 4);
  EXPECT_EQ(place.generation, 1ULL << 60);
  EXPECT_EQ(place.rendezvous, "127.0.0.1 4711");
  const auto failed = over_the_wire(actors::step_failed{3, 1, "late", true, collective_fault::peer_lost});
  EXPECT_EQ(failed.collective, collective_fault::peer_lost);
  EXPECT_EQ(over_the_wire(actors::step_failed{3, 1, "late", false, {}}).collective, std::nullopt);
  EXPECT_EQ(failed.rank, 1);
  EXPECT_EQ(failed.reason, "late");
  EXPECT_TRUE(failed.by_peer);
  EXPECT_EQ(over_the_wire(actors::step_done{3, {5, 6, {}, {}}}).result.step, 6U);
}

TEST_F(protocol_test, an_upgrade_arrives_as_it_was_asked_for) {
  const auto order = over_the_wire(machine_upgrade{1ULL << 40, "node a", 3, 4, 60'000});
  EXPECT_EQ(order.machine, 1ULL << 40);
  EXPECT_EQ(order.who, "node a");
  EXPECT_EQ(order.before, 3U);
  EXPECT_EQ(order.program, 4U);
  EXPECT_EQ(order.start_deadline_ms, 60'000);
  EXPECT_EQ(over_the_wire(upgrade_note{5, "line"}).text, "line");
  const auto end = over_the_wire(upgrade_end{5, "why"});
  EXPECT_EQ(end.machine, 5U);
  EXPECT_EQ(end.failure, "why");
  const auto start = over_the_wire(start_worker{5, 1, 2, 3, 4, 4711, "token", 6});
  EXPECT_EQ(start.token, "token");
  EXPECT_EQ(start.program, 6U);
}

TEST_F(protocol_test, nan_keeps_its_bits) {
  const auto back = over_the_wire(scored_token{1, std::numeric_limits<float>::quiet_NaN()});
  EXPECT_EQ(std::bit_cast<std::uint32_t>(back.logprob), std::bit_cast<std::uint32_t>(std::numeric_limits<float>::quiet_NaN()));
}

TEST_F(protocol_test, a_request_keeps_its_alternatives_and_options) {
  generation_request r;
  r.id = 9;
  r.prompts = {std::string("text"), token_prompt{1, 2}, chat_prompt{"[]", "[]", "{}", false}};
  r.max_tokens = 0;
  r.seed = 1;
  r.sampling = odd_sampling();
  r.stop_strings = {"a", "b"};
  r.cache_salt = "salt";
  r.timeout_ns = 7;
  const auto back = over_the_wire(r);
  EXPECT_EQ(back.prompts, r.prompts);
  EXPECT_EQ(back.max_tokens, r.max_tokens);
  EXPECT_EQ(back.seed, r.seed);
  EXPECT_EQ(back.prompt_logprobs, std::nullopt);
  EXPECT_EQ(back.sampling, r.sampling);
  EXPECT_EQ(back.stop_strings, r.stop_strings);
  EXPECT_EQ(back.cache_salt, r.cache_salt);
  EXPECT_EQ(back.timeout_ns, r.timeout_ns);
  EXPECT_EQ(back.queue_timeout_ns, std::nullopt);
}

TEST_F(protocol_test, an_update_keeps_its_end_and_its_error) {
  sequence_update u;
  u.id = {1, 2};
  u.finish = finish_reason::failed;
  u.failure = error{error_kind::overloaded, "full", "n", 7};
  u.times = {1, 2, 3, 4};
  const auto back = over_the_wire(u);
  EXPECT_EQ(back.id, u.id);
  EXPECT_EQ(back.finish, u.finish);
  ASSERT_TRUE(back.failure);
  EXPECT_EQ(back.failure->message, "full");
  EXPECT_EQ(back.failure->retry_after_seconds, 7U);
  EXPECT_EQ(back.times.finished_ns, 4U);
}

TEST_F(protocol_test, a_truncated_message_is_an_error_and_no_crash) {
  step_plan plan;
  plan.items = {{2, work_kind::decode, 5, 1, true, std::nullopt}};
  plan.tokens = {1, 2, 3};
  std::vector<char> bytes;
  caf::binary_serializer out(system_, bytes);
  ASSERT_FALSE(static_cast<bool>(out(plan)));
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    step_plan back;
    caf::binary_deserializer in(system_, bytes.data(), length);
    EXPECT_TRUE(static_cast<bool>(in(back))) << length;
  }
}

TEST_F(protocol_test, a_plan_of_full_size_stays_far_below_the_limit_of_a_message) {
  step_plan plan;
  plan.tokens.assign(8192, 150'000);
  for (slot_id s = 0; s < 256; ++s) {
    plan.opened.push_back({s, 100, odd_sampling()});
    plan.grants.push_back({s, 0, std::vector<block_id>(8, 1'000'000)});
    plan.items.push_back({s, work_kind::prefill, 0, 32, true, std::nullopt});
  }
  std::vector<char> bytes;
  caf::binary_serializer out(system_, bytes);
  ASSERT_FALSE(static_cast<bool>(out(plan)));
  EXPECT_LT(bytes.size(), 256U << 10); // only complete messages count as a sign of life
}

} // namespace
} // namespace troupe::actors
