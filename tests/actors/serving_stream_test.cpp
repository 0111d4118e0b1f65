// What a healthy serving side says: streams, stops, choices, echo, usage, metrics.
#include <future>

#include "tests/actors/serving_fixture.hpp"

namespace troupe {
namespace {

class serving_stream_test : public test::serving_test {};
using test::byte_tokenizer;

TEST_F(serving_stream_test, one_request_gives_the_devices_tokens_as_text) {
  start();
  EXPECT_TRUE(server->status().ready);
  auto sink = submit(request("hello", 12));
  expect_stream(*sink, "hello", 12);
  EXPECT_EQ(sink->usage->prompt_tokens, 5);
  EXPECT_EQ(sink->usage->completion_tokens, 12);
  EXPECT_EQ(sink->choices[0].finish, finish_reason::length);
  EXPECT_EQ(metric("troupe_requests_total", "length"), 1);
  EXPECT_EQ(metric("troupe_generation_tokens_total"), 12);
  EXPECT_EQ(metric("troupe_prompt_tokens_total"), 5);
  EXPECT_EQ(metric("troupe_time_to_first_token_seconds_count"), 1);
  EXPECT_EQ(metric("troupe_inter_token_latency_seconds_count"), 11);
  expect_idle();
}

TEST_F(serving_stream_test, many_requests_at_once_say_what_each_says_alone) {
  device.num_blocks = 64; // too few for all at once: some are preempted or wait
  start();
  std::vector<std::string> texts;
  for (int i = 0; i < 40; ++i) texts.push_back("prompt number " + std::to_string(i));
  for (const auto& text : texts) submit(request(text, 50));
  for (std::size_t i = 0; i < texts.size(); ++i) expect_stream(*sinks[i], texts[i], 50);
  expect_idle();
}

TEST_F(serving_stream_test, eos_ends_with_stop_and_counts_as_generated) {
  start();
  for (int i = 0; i < 64; ++i) {
    const std::string text = "p" + std::to_string(i);
    const std::string expected = expected_text(text, 400);
    auto sink = submit(request(text, 400));
    expect_stream(*sink, text, 400);
    const bool stopped = expected.size() < 400;
    EXPECT_EQ(sink->choices[0].finish, stopped ? finish_reason::stop : finish_reason::length);
    EXPECT_EQ(sink->usage->completion_tokens, static_cast<std::int64_t>(expected.size()) + (stopped ? 1 : 0));
  }
}

TEST_F(serving_stream_test, ignore_eos_runs_on_to_the_limit) {
  start();
  auto r = request("run on", 300);
  r.ignore_eos = true;
  auto sink = submit(r);
  ASSERT_TRUE(sink->wait());
  EXPECT_EQ(sink->choices[0].tokens.size(), 300U);
  EXPECT_EQ(sink->choices[0].finish, finish_reason::length);
}

TEST_F(serving_stream_test, min_tokens_holds_eos_back) {
  start();
  std::string text; // one that ends early when left alone
  for (int i = 0; text.empty(); ++i) {
    if (expected_text("m" + std::to_string(i), 40).size() < 20) text = "m" + std::to_string(i);
  }
  auto r = request(text, 40);
  r.min_tokens = 30;
  auto sink = submit(r);
  ASSERT_TRUE(sink->wait());
  EXPECT_EQ(sink->choices[0].text, expected_text(text, 40, 0, nullptr, 30));
  EXPECT_GE(sink->choices[0].tokens.size(), 30U);
}

TEST_F(serving_stream_test, without_max_tokens_a_choice_may_fill_the_context) {
  device.max_model_len = 100;
  start();
  auto r = request("0123456789", std::nullopt);
  r.ignore_eos = true;
  auto sink = submit(r);
  ASSERT_TRUE(sink->wait());
  EXPECT_EQ(sink->choices[0].tokens.size(), 90U);
}

TEST_F(serving_stream_test, a_pool_smaller_than_the_context_cuts_the_context) {
  device.num_blocks = 10; // 40 tokens
  start();
  EXPECT_EQ(server->model().max_model_len, 40);
  auto sink = submit(request("0123456789", std::nullopt));
  expect_stream(*sink, "0123456789", 30);
}

TEST_F(serving_stream_test, prompts_times_n_are_numbered_and_seeded_apart) {
  start();
  auto r = request("one", 20);
  r.prompts.push_back("two");
  r.n = 3;
  r.seed = 7;
  r.sampling.temperature = 1;
  auto sink = submit(r);
  ASSERT_TRUE(sink->wait());
  ASSERT_FALSE(sink->failed);
  sampling_params p;
  p.seed = 7;
  ASSERT_EQ(sink->choices.size(), 6U);
  for (std::int32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(sink->choices[i].text, expected_text("one", 20, i, &p));
    EXPECT_EQ(sink->choices[3 + i].text, expected_text("two", 20, i, &p));
  }
  EXPECT_NE(sink->choices[0].text, sink->choices[1].text);
  EXPECT_EQ(sink->usage->prompt_tokens, 6) << "each prompt once, whatever n";
}

TEST_F(serving_stream_test, a_stop_string_over_several_tokens_ends_the_choice_before_it) {
  start();
  const std::string whole = expected_text("stop here", 30);
  ASSERT_GE(whole.size(), 12U);
  auto r = request("stop here", 30);
  r.stop_strings = {whole.substr(6, 4), "never seen"};
  auto sink = submit(r);
  ASSERT_TRUE(sink->wait());
  EXPECT_EQ(sink->choices[0].text, whole.substr(0, whole.find(r.stop_strings[0])));
  EXPECT_EQ(sink->choices[0].finish, finish_reason::stop);
  EXPECT_EQ(sink->choices[0].stop_reason, r.stop_strings[0]);
  EXPECT_EQ(sink->usage->completion_tokens, static_cast<std::int64_t>(whole.find(r.stop_strings[0]) + 4)) << "tokens up to the stop";
  expect_idle(); // the scheduler was told
}

TEST_F(serving_stream_test, a_stop_string_that_only_begins_is_released_once) {
  start();
  const std::string whole = expected_text("near miss", 10);
  auto r = request("near miss", 10);
  r.stop_strings = {whole.substr(whole.size() - 3) + "#"}; // its beginning is the text's end
  auto sink = submit(r);
  expect_stream(*sink, "near miss", 10);
  EXPECT_EQ(sink->choices[0].finish, whole.size() == 10 ? finish_reason::length : finish_reason::stop);
}

TEST_F(serving_stream_test, stop_strings_wait_for_min_tokens) {
  start();
  const std::string whole = expected_text("patience", 30, 0, nullptr, 12);
  auto r = request("patience", 30);
  r.stop_strings = {whole.substr(2, 1)};
  r.min_tokens = 12;
  auto sink = submit(r);
  ASSERT_TRUE(sink->wait());
  EXPECT_GE(sink->choices[0].tokens.size(), 12U);
  const auto at = whole.find(r.stop_strings[0], 11);
  EXPECT_EQ(sink->choices[0].text, whole.substr(0, at));
}

TEST_F(serving_stream_test, echo_reports_each_prompt_before_its_output) {
  start();
  auto r = request("first", 5);
  r.prompts.push_back(token_prompt{'x', 'y'});
  r.echo = true;
  auto sink = submit(r);
  ASSERT_TRUE(sink->wait());
  ASSERT_EQ(sink->prompts.size(), 2U);
  EXPECT_EQ(sink->prompts[0].text, "first");
  EXPECT_EQ(sink->prompts[1].text, "xy");
  EXPECT_EQ(sink->prompts[1].tokens, (std::vector<token_id>{'x', 'y'}));
  EXPECT_EQ(sink->prompts[1].token_bytes, (std::vector<std::string>{"x", "y"}));
  EXPECT_TRUE(sink->prompts[0].logprobs.empty());
}

TEST_F(serving_stream_test, echo_with_prompt_logprobs_has_one_entry_per_token_and_none_for_the_first) {
  device.max_batched_tokens = 8; // the prompt comes in chunks
  start();
  auto r = request("a prompt of several chunks", 0);
  r.echo = true;
  r.prompt_logprobs = 2;
  auto sink = submit(r);
  ASSERT_TRUE(sink->wait());
  ASSERT_FALSE(sink->failed) << sink->failed->message;
  ASSERT_EQ(sink->prompts.size(), 1U);
  const auto& report = sink->prompts[0];
  ASSERT_EQ(report.logprobs.size(), report.tokens.size());
  EXPECT_FALSE(report.logprobs[0]);
  for (std::size_t i = 1; i < report.tokens.size(); ++i) {
    ASSERT_TRUE(report.logprobs[i]);
    EXPECT_EQ(report.logprobs[i]->chosen.token, report.tokens[i]);
    EXPECT_EQ(report.logprobs[i]->top.size(), 2U);
  }
  EXPECT_EQ(sink->usage->completion_tokens, 0);
  EXPECT_EQ(sink->choices[0].finish, finish_reason::length);
}

TEST_F(serving_stream_test, prompt_logprobs_come_before_the_output_of_every_choice) {
  start();
  auto r = request("scored", 10);
  r.n = 3;
  r.echo = true;
  r.prompt_logprobs = 0;
  auto sink = submit(r); // the sink checks the order
  ASSERT_TRUE(sink->wait());
  ASSERT_EQ(sink->prompts.size(), 1U);
  for (std::int32_t i = 0; i < 3; ++i) EXPECT_EQ(sink->choices[i].text, expected_text("scored", 10));
}

TEST_F(serving_stream_test, logprobs_come_one_per_token) {
  start();
  auto r = request("scores", 9);
  r.sampling.top_logprobs = 3;
  auto sink = submit(r);
  ASSERT_TRUE(sink->wait());
  auto& c = sink->choices[0];
  ASSERT_EQ(c.logprobs.size(), c.tokens.size());
  for (std::size_t i = 0; i < c.tokens.size(); ++i) {
    EXPECT_EQ(c.logprobs[i].chosen.token, c.tokens[i]);
    EXPECT_EQ(c.logprobs[i].chosen.bytes, std::string(1, static_cast<char>(c.tokens[i])));
    EXPECT_EQ(c.logprobs[i].top.size(), 3U);
  }
}

TEST_F(serving_stream_test, bos_makes_an_empty_prompt_a_prompt) {
  tokens = std::make_shared<byte_tokenizer>(true);
  start();
  auto sink = submit(request("", 4));
  ASSERT_TRUE(sink->wait());
  ASSERT_FALSE(sink->failed);
  EXPECT_EQ(sink->usage->prompt_tokens, 1);
}

TEST_F(serving_stream_test, a_repeated_prompt_is_found_in_the_cache_and_reported) {
  start();
  const auto serve = [&](const std::string& salt) {
    auto r = request("a prompt of 25 characters", 8);
    r.cache_salt = salt;
    auto sink = submit(std::move(r));
    expect_stream(*sink, "a prompt of 25 characters", 8);
    return sink->usage ? sink->usage->cached_tokens : -1;
  };
  EXPECT_EQ(serve(""), 0);
  EXPECT_EQ(serve(""), 24); // blocks of 4; the last token is computed
  EXPECT_EQ(serve("another tenant"), 0);
  EXPECT_EQ(metric("troupe_cached_tokens_total"), 24);
  EXPECT_TRUE(test::eventually([&] { return metric("troupe_kv_blocks", "cached") > 12; }));
  expect_idle();
}

TEST_F(serving_stream_test, choices_of_one_prompt_share_its_rows_and_keep_their_own_streams) {
  start();
  const std::string text(60, 'p');
  auto r = request(text, 8);
  r.n = 8;
  r.seed = 5;
  r.sampling.temperature = 1;
  auto sampling = r.sampling;
  sampling.seed = 5;
  auto sink = submit(std::move(r));
  ASSERT_TRUE(sink->wait());
  ASSERT_FALSE(sink->failed);
  for (std::int32_t i = 0; i < 8; ++i) EXPECT_EQ(sink->choices[i].text, expected_text(text, 8, i, &sampling)) << i;
  // The prompt once, its last row seven times more, and one row for each output.
  EXPECT_LE(metric("troupe_step_tokens_sum"), 60 + 7 + 8 * 8);
  expect_idle();
}

TEST_F(serving_stream_test, without_prefix_caching_nothing_is_kept) {
  options.prefix_caching = false;
  start();
  for (int i = 0; i < 2; ++i) {
    auto sink = submit(request("a prompt of 25 characters", 8));
    expect_stream(*sink, "a prompt of 25 characters", 8);
    EXPECT_EQ(sink->usage->cached_tokens, 0);
  }
  expect_idle();
  EXPECT_EQ(metric("troupe_kv_blocks", "cached"), 0);
}

TEST_F(serving_stream_test, tokenize_and_detokenize_answer) {
  start();
  std::promise<result<tokenize_reply>> tokenized;
  server->tokenize({std::string("ab"), true}, [&](result<tokenize_reply> reply) { tokenized.set_value(std::move(reply)); });
  const auto reply = tokenized.get_future().get();
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply.value().tokens, (std::vector<token_id>{'a', 'b'}));
  EXPECT_EQ(reply.value().token_bytes, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(reply.value().max_model_len, 512);
  std::promise<result<std::string>> text;
  server->detokenize({'h', 'i'}, [&](result<std::string> r) { text.set_value(std::move(r)); });
  EXPECT_EQ(text.get_future().get().value(), "hi");
}

TEST_F(serving_stream_test, a_chat_is_rendered_by_the_template) {
  templates = std::make_shared<chat_template>("{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}", "test");
  start();
  EXPECT_TRUE(server->model().has_chat_template);
  chat_prompt chat;
  chat.messages_json = R"([{"role":"user","content":"hi"}])";
  auto sink = submit(request(chat, 6));
  expect_stream(*sink, "user:hi;", 6);
}

} // namespace
} // namespace troupe
