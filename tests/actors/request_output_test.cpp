// From updates to sink calls, without actors: several tokens in one update, late updates, held output.
#include "actors/request_output.hpp"

#include <gtest/gtest.h>

#include "tests/actors/serving_fixture.hpp"

namespace troupe::actors {
namespace {

class request_output_test : public ::testing::Test {
 protected:
  request_output make(open_request open) {
    if (open.prompts.empty()) open.prompts.push_back({3, {'a', 'b', 'c'}, {}});
    open.id = 1;
    open.arrival_ns = 100;
    sink->n = open.n;
    return {std::move(open), tokens, sink, metrics};
  }

  static sequence_update update(std::int32_t index, const std::string& text, std::int32_t total,
                                std::optional<finish_reason> finish = std::nullopt) {
    sequence_update u;
    u.id = {1, index};
    for (const char c : text) u.tokens.push_back(static_cast<unsigned char>(c));
    u.output_tokens = total;
    u.finish = finish;
    u.times = {100, 200, 300, 0};
    return u;
  }

  std::shared_ptr<const tokenizer> tokens = std::make_shared<test::byte_tokenizer>();
  std::shared_ptr<test::recording_sink> sink = std::make_shared<test::recording_sink>();
  std::shared_ptr<telemetry::metrics> metrics = std::make_shared<telemetry::metrics>("fake", "test");
};

TEST_F(request_output_test, tokens_behind_a_stop_in_the_same_update_are_dropped_and_not_counted) {
  open_request open;
  open.stop.stop_strings = {"ST"};
  auto out = make(open);
  auto u = update(0, "xySTzz", 6);
  EXPECT_TRUE(out.absorb(u, 400)) << "the scheduler does not know yet";
  EXPECT_TRUE(out.ended());
  EXPECT_EQ(sink->choices[0].text, "xy");
  EXPECT_EQ(sink->choices[0].finish, finish_reason::stop);
  EXPECT_EQ(out.usage().completion_tokens, 4);
}

TEST_F(request_output_test, a_row_computed_after_the_end_is_dropped) {
  open_request open;
  open.stop.stop_strings = {"S"};
  auto out = make(open);
  auto first = update(0, "S", 1);
  out.absorb(first, 400);
  auto late = update(0, "more", 5, finish_reason::length);
  EXPECT_FALSE(out.absorb(late, 500));
  EXPECT_EQ(out.usage().completion_tokens, 1);
}

TEST_F(request_output_test, a_stop_that_completes_with_the_last_token_wins_over_length) {
  open_request open;
  open.stop.stop_strings = {"yz"};
  auto out = make(open);
  auto u = update(0, "xyz", 3, finish_reason::length);
  EXPECT_FALSE(out.absorb(u, 400)) << "the scheduler ended it itself";
  EXPECT_EQ(sink->choices[0].finish, finish_reason::stop);
  EXPECT_EQ(sink->choices[0].text, "x");
}

TEST_F(request_output_test, half_a_character_at_the_end_becomes_a_replacement) {
  auto out = make({});
  auto u = update(0, "a\xC3", 2, finish_reason::length);
  out.absorb(u, 400);
  EXPECT_EQ(sink->choices[0].text, "a\xEF\xBF\xBD");
  EXPECT_EQ(sink->choices[0].tokens.size(), 2U);
}

TEST_F(request_output_test, output_of_other_choices_waits_for_the_prompts_report) {
  open_request open;
  open.n = 2;
  open.echo = open.prompt_scores = true;
  open.prompts.push_back({2, {'a', 'b'}, {"ab", {'a', 'b'}, {"a", "b"}}});
  auto out = make(open);
  auto other = update(1, "early", 5);
  out.absorb(other, 400);
  EXPECT_TRUE(sink->prompts.empty());
  EXPECT_TRUE(sink->choices.empty());
  auto scored = update(0, "x", 1);
  scored.prompt_scores = {{{'b', -1.0F}, {}}};
  out.absorb(scored, 500);
  ASSERT_EQ(sink->prompts.size(), 1U);
  EXPECT_EQ(sink->prompts[0].logprobs.size(), 2U);
  EXPECT_EQ(sink->choices[1].text, "early");
  EXPECT_EQ(sink->choices[0].text, "x");
  EXPECT_EQ(sink->violation(), "");
}

TEST_F(request_output_test, times_span_all_choices_and_never_wrap) {
  open_request open;
  open.n = 2;
  auto out = make(open);
  EXPECT_EQ(out.times(50).total_ns, 0U) << "a clock before the arrival";
  auto a = update(0, "x", 1);
  out.absorb(a, 400);
  auto b = update(1, "y", 1);
  out.absorb(b, 500);
  auto c = update(1, "z", 2, finish_reason::length);
  out.absorb(c, 900);
  const auto t = out.times(1000);
  EXPECT_EQ(t.queue_ns, 100U);
  EXPECT_EQ(t.prefill_ns, 200U);
  EXPECT_EQ(t.decode_ns, 400U) << "of the longest choice alone: others may have waited";
  EXPECT_EQ(t.total_ns, 900U);
  EXPECT_EQ(t.output_tokens, 2U);
  EXPECT_EQ(out.open_sequences(), (std::vector<sequence_id>{{1, 0}}));
}

TEST_F(request_output_test, cached_tokens_stay_between_zero_and_the_prompt) {
  auto out = make({});
  auto u = update(0, "x", 1, finish_reason::stop);
  u.cached_tokens = 99;
  out.absorb(u, 400);
  EXPECT_EQ(out.usage().cached_tokens, 3);
  auto negative = make({});
  u.cached_tokens = -5;
  negative.absorb(u, 400);
  EXPECT_EQ(negative.usage().cached_tokens, 0);
}

} // namespace
} // namespace troupe::actors
