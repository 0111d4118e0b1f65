// Admission as a function: what is refused, and what a request expands to.
#include "actors/admission.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace troupe::actors {
namespace {

served_model small_model() {
  served_model m;
  m.names = {"m", "alias"};
  m.max_model_len = 20;
  m.vocab_size = 100;
  return m;
}

generation_request plain_request() {
  generation_request r;
  r.id = 5;
  r.model = "m";
  r.prompts = {std::string("p")};
  return r;
}

encoded_prompt tokens(std::vector<token_id> ids) { return {"", std::move(ids), {}}; }

result<std::vector<sequence_request>> expand_one(const generation_request& r, std::size_t prompt_tokens) {
  return expand(r, {tokens(std::vector<token_id>(prompt_tokens, 1))}, small_model(), {2}, 40);
}

TEST(admission, the_context_is_filled_to_the_last_token_and_not_beyond) {
  auto r = plain_request();
  r.max_tokens = 5;
  EXPECT_TRUE(expand_one(r, 15).has_value());
  EXPECT_EQ(expand_one(r, 16).failure().param, "max_tokens");
  r.max_tokens.reset();
  EXPECT_EQ(expand_one(r, 19).value()[0].stop.max_tokens, 1);
  EXPECT_EQ(expand_one(r, 20).failure().param, "prompt");
  r.max_tokens = 0; // prompt only
  EXPECT_TRUE(expand_one(r, 20).has_value());
  EXPECT_EQ(expand_one(r, 21).failure().param, "prompt");
}

TEST(admission, a_chat_that_is_too_long_names_messages) {
  auto r = plain_request();
  r.prompts = {chat_prompt{}};
  EXPECT_EQ(expand_one(r, 30).failure().param, "messages");
}

TEST(admission, huge_limits_do_not_overflow) {
  auto r = plain_request();
  r.max_tokens = std::numeric_limits<std::int32_t>::max();
  EXPECT_EQ(expand_one(r, 15).failure().param, "max_tokens");
  r = plain_request();
  r.n = std::numeric_limits<std::int32_t>::max();
  r.prompts.resize(3, std::string("p"));
  EXPECT_EQ(check_request(r, small_model())->param, "n");
}

TEST(admission, choices_are_numbered_by_prompt_and_seeded_by_their_place_in_it) {
  auto r = plain_request();
  r.n = 2;
  r.echo = true;
  r.prompt_logprobs = 1;
  const auto s = expand(r, {tokens({1}), tokens({3, 4})}, small_model(), {2}, 40).value();
  ASSERT_EQ(s.size(), 4U);
  for (std::int32_t i = 0; i < 4; ++i) {
    const auto& q = s[static_cast<std::size_t>(i)];
    EXPECT_EQ(q.id, (sequence_id{5, i}));
    EXPECT_EQ(q.sampling.seed, 40U + static_cast<std::uint64_t>(i % 2));
    EXPECT_EQ(q.same_prompt_as, i % 2 == 0 ? std::nullopt : std::optional(i - 1));
    EXPECT_EQ(q.prompt_logprobs.has_value(), i % 2 == 0) << "the prompt is scored once";
  }
  EXPECT_EQ(s[3].prompt, (std::vector<token_id>{3, 4}));
}

TEST(admission, stop_tokens_are_eos_and_the_clients_each_once_and_suppressed_below_min_tokens) {
  auto r = plain_request();
  r.stop_token_ids = {7, 2};
  auto s = expand_one(r, 1).value()[0];
  EXPECT_THAT(s.stop.stop_token_ids, testing::ElementsAre(2, 7));
  EXPECT_TRUE(s.sampling.suppressed.empty()) << "nothing to suppress without min_tokens";
  r.min_tokens = 3;
  s = expand_one(r, 1).value()[0];
  EXPECT_THAT(s.sampling.suppressed, testing::ElementsAre(2, 7));
  EXPECT_EQ(s.sampling.min_tokens, 3);
  EXPECT_EQ(s.stop.min_tokens, 3);
  r.ignore_eos = true;
  r.stop_token_ids = {7};
  s = expand_one(r, 1).value()[0];
  EXPECT_THAT(s.stop.stop_token_ids, testing::ElementsAre(7));
}

TEST(admission, min_tokens_must_fit_what_is_left_of_the_context) {
  auto r = plain_request();
  r.min_tokens = 6;
  EXPECT_TRUE(expand_one(r, 14).has_value());
  EXPECT_EQ(expand_one(r, 15).failure().param, "min_tokens");
}

TEST(admission, every_served_name_is_accepted_and_no_other) {
  auto r = plain_request();
  r.model = "alias";
  EXPECT_FALSE(check_request(r, small_model()));
  r.model = std::string(1 << 20, 'x');
  const auto refused = check_request(r, small_model());
  EXPECT_EQ(refused->kind, error_kind::not_found);
  EXPECT_LT(refused->message.size(), 200U) << "no client bytes in the message";
}

TEST(admission, a_tokenizer_that_gives_ids_beyond_the_model_is_caught) {
  EXPECT_EQ(expand(plain_request(), {tokens({1, 100})}, small_model(), {2}, 0).failure().param, "prompt");
}

TEST(admission, the_tail_of_a_long_prompt_goes_to_the_detokenizer_and_echo_takes_all) {
  auto r = plain_request();
  std::vector<token_id> long_prompt(1000);
  for (std::size_t i = 0; i < long_prompt.size(); ++i) long_prompt[i] = static_cast<token_id>(i);
  auto open = describe(r, {tokens(long_prompt), tokens({9})}, {});
  EXPECT_EQ(open.prompts[0].token_count, 1000);
  EXPECT_EQ(open.prompts[0].tail.back(), 999);
  EXPECT_LE(open.prompts[0].tail.size(), 32U);
  EXPECT_EQ(open.prompts[1].tail, (std::vector<token_id>{9}));
  EXPECT_TRUE(open.prompts[0].report.tokens.empty());
  r.echo = true;
  open = describe(r, {tokens(long_prompt)}, {});
  EXPECT_EQ(open.prompts[0].report.tokens.size(), 1000U);
}

} // namespace
} // namespace troupe::actors
