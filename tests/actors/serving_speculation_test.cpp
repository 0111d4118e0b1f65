// What clients see while the device verifies runs of drafts: the same streams, in fewer steps.
#include "tests/actors/serving_fixture.hpp"

namespace troupe {
namespace {

class serving_speculation_test : public test::serving_test {
 protected:
  void SetUp() override {
    test::serving_test::SetUp();
    options.speculation = {draft_source::model, 5, false};
  }
  double drafts(const char* what) const {
    double all = 0;
    for (const char* position : {"1", "2", "3", "4", "5", "6", "7", "8+"}) {
      all += metric(std::string("troupe_spec_") + what + "_tokens_total", std::string("position=\"") + position + "\"");
    }
    return all;
  }
};

TEST_F(serving_speculation_test, streams_are_the_same_and_take_fewer_steps) {
  start();
  auto sink = submit(request("hello", 60));
  expect_stream(*sink, "hello", 60);
  EXPECT_LT(faults->steps, 40);
  EXPECT_LT(sink->outputs, 40) << "a step's tokens come as one chunk";
  EXPECT_EQ(sink->usage->completion_tokens, static_cast<std::int64_t>(expected_text("hello", 60).size()));
  EXPECT_EQ(metric("troupe_inter_token_latency_seconds_count"), metric("troupe_generation_tokens_total") - 1);
  EXPECT_GT(drafts("accepted"), 10);
  EXPECT_GT(drafts("drafted"), drafts("accepted"));
  EXPECT_EQ(metric("troupe_spec_active"), 1);
  expect_idle();
}

TEST_F(serving_speculation_test, many_requests_in_a_small_pool_say_what_each_says_alone) {
  device.num_blocks = 64;
  start();
  std::vector<std::string> texts;
  for (int i = 0; i < 40; ++i) texts.push_back("prompt number " + std::to_string(i));
  for (const auto& text : texts) submit(request(text, 50));
  for (std::size_t i = 0; i < texts.size(); ++i) expect_stream(*sinks[i], texts[i], 50);
  expect_idle();
}

// Of every length up to that of a run and beyond, ending anywhere in one.
TEST_F(serving_speculation_test, stop_strings_end_inside_a_run) {
  start();
  std::string text, whole; // one that says enough
  for (int i = 0; whole.size() < 40; ++i) whole = expected_text(text = "stop " + std::to_string(i), 64);
  for (std::size_t at = 1; at + 2 < whole.size(); ++at) {
    auto r = request(text, 64);
    r.stop_strings = {whole.substr(at, 2)};
    auto sink = submit(r);
    ASSERT_TRUE(sink->wait());
    const std::size_t first = whole.find(r.stop_strings[0]);
    EXPECT_EQ(sink->choices[0].text, whole.substr(0, first));
    EXPECT_EQ(sink->choices[0].finish, finish_reason::stop);
    EXPECT_EQ(sink->usage->completion_tokens, static_cast<std::int64_t>(first + 2)) << "tokens behind the stop string do not count";
  }
  expect_idle();
}

TEST_F(serving_speculation_test, every_token_of_a_run_has_its_logprobs) {
  start();
  auto r = request("scores", 40);
  r.sampling.top_logprobs = 2;
  auto sink = submit(r);
  ASSERT_TRUE(sink->wait());
  const auto& choice = sink->choices[0];
  ASSERT_EQ(choice.logprobs.size(), choice.tokens.size());
  for (std::size_t i = 0; i < choice.tokens.size(); ++i) {
    EXPECT_EQ(choice.logprobs[i].chosen.token, choice.tokens[i]);
    EXPECT_EQ(choice.logprobs[i].top.size(), 2U);
  }
}

TEST_F(serving_speculation_test, a_device_lost_in_the_middle_of_a_verification_changes_nothing) {
  faults->fail_at = 7;
  start();
  std::vector<std::string> texts;
  for (int i = 0; i < 6; ++i) texts.push_back("text " + std::to_string(i));
  for (const auto& text : texts) submit(request(text, 60));
  for (std::size_t i = 0; i < texts.size(); ++i) expect_stream(*sinks[i], texts[i], 60);
  EXPECT_EQ(metric("troupe_device_restarts_total"), 1);
  expect_idle();
}

TEST_F(serving_speculation_test, a_client_that_leaves_during_a_verification_leaves_nothing_behind) {
  faults->step_us = 500;
  start();
  for (int i = 0; i < 24; ++i) {
    auto sink = submit(request("leaving " + std::to_string(i), 200));
    sink->wait_for_outputs(1 + i % 5);
    server->cancel(last_id);
    ASSERT_TRUE(sink->wait());
  }
  expect_idle();
}

TEST_F(serving_speculation_test, a_device_that_cannot_is_refused_at_the_start) {
  device.max_verify_tokens = 1;
  EXPECT_THROW(start(), std::runtime_error);
  device.max_verify_tokens = 8;
  device.max_proposals = 0;
  EXPECT_THROW(start(), std::runtime_error);
  options.speculation.source = draft_source::ngram;
  start();
  expect_stream(*submit(request("hello", 12)), "hello", 12);
}

} // namespace
} // namespace troupe
