// Requests that are refused, cancelled or turned away, and what that leaves behind: nothing.
#include <future>
#include <random>

#include "tests/actors/serving_fixture.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;

using test::eventually;

class serving_limits_test : public test::serving_test {
 protected:
  // The request ends in an error of this kind that names this field.
  void expect_refusal(generation_request r, error_kind kind, const std::string& param) {
    auto sink = submit(std::move(r));
    ASSERT_TRUE(sink->wait());
    ASSERT_TRUE(sink->failed) << "not refused";
    EXPECT_EQ(sink->failed->kind, kind) << sink->failed->message;
    EXPECT_EQ(sink->failed->param, param) << sink->failed->message;
  }

  // Just `tokens_in_all` outputs, the first of which is there.
  std::shared_ptr<test::recording_sink> submit_long(const std::string& text, std::int32_t tokens_in_all) {
    auto r = request(text, tokens_in_all);
    r.min_tokens = tokens_in_all;
    auto sink = submit(std::move(r));
    EXPECT_TRUE(sink->wait_for_outputs(1));
    return sink;
  }
};

TEST_F(serving_limits_test, what_can_never_be_served_is_a_400_that_names_the_field) {
  device.max_model_len = 32;
  start();
  expect_refusal(request(std::string(32, 'x')), error_kind::invalid_request, "prompt");
  expect_refusal(request(std::string(30, 'x'), 3), error_kind::invalid_request, "max_tokens");
  expect_refusal(request(""), error_kind::invalid_request, "prompt");
  expect_refusal(request(token_prompt{}), error_kind::invalid_request, "prompt");
  expect_refusal(request(chat_prompt{}), error_kind::invalid_request, "messages");
  expect_refusal(request("x", -1), error_kind::invalid_request, "max_tokens");
  auto r = request("x", 4);
  r.min_tokens = 5;
  expect_refusal(r, error_kind::invalid_request, "min_tokens");
  r = request("x");
  r.n = 0;
  expect_refusal(r, error_kind::invalid_request, "n");
  r = request("x");
  r.model = "another";
  expect_refusal(r, error_kind::not_found, "model");
  EXPECT_EQ(metric("troupe_requests_total", "rejected"), 9);
  auto sink = submit(request("still here", 8));
  expect_stream(*sink, "still here", 8);
  EXPECT_EQ(metric("troupe_requests_total", "length") + metric("troupe_requests_total", "stop"), 1);
}

TEST_F(serving_limits_test, a_request_that_waits_beyond_its_queue_timeout_times_out_and_the_one_before_it_does_not) {
  device.max_num_seqs = 1;
  faults->step_us = 20'000;
  start();
  auto running = submit_long("a", 30);
  auto second = request("b", 4);
  second.queue_timeout_ns = 50'000'000;
  expect_refusal(second, error_kind::timed_out, "queue_timeout_ms");
  EXPECT_FALSE(running->ended());
  ASSERT_TRUE(running->wait());
  EXPECT_EQ(running->choices[0].text, expected_text("a", 30, 0, nullptr, 30));
  expect_idle();
}

TEST_F(serving_limits_test, a_timeout_ends_a_running_request_even_while_its_device_hangs) {
  start();
  faults->close_gate();
  auto r = request("x", 200);
  r.timeout_ns = 50'000'000;
  expect_refusal(r, error_kind::timed_out, "timeout_ms");
  faults->open_gate();
  expect_idle();
  auto sink = submit(request("still here", 8));
  expect_stream(*sink, "still here", 8);
}

TEST_F(serving_limits_test, a_timeout_holds_in_the_tokenizers_queue_too) {
  options.tokenizer_workers = 1;
  start();
  tokens->close_gate();
  auto blocking = submit(request("a", 4));
  tokens->await_encoding(1);
  for (const bool queue : {true, false}) {
    auto r = request("b", 4);
    (queue ? r.queue_timeout_ns : r.timeout_ns) = 30'000'000;
    expect_refusal(r, error_kind::timed_out, queue ? "queue_timeout_ms" : "timeout_ms");
  }
  tokens->open_gate();
  expect_stream(*blocking, "a", 4);
  expect_idle();
}

TEST_F(serving_limits_test, what_would_speak_too_late_is_turned_away_with_a_wait_once_the_speed_is_known) {
  device.max_num_seqs = 1;
  faults->step_us = 20'000;
  options.max_predicted_ttft = 500ms;
  start();
  ASSERT_TRUE(submit_long("to measure by", 40)->wait()); // a stay of 800 ms at least
  auto running = submit_long("a", 40);
  auto late = submit(request("b", 4));
  ASSERT_TRUE(late->wait());
  ASSERT_TRUE(late->failed);
  EXPECT_EQ(late->failed->kind, error_kind::overloaded);
  EXPECT_GE(late->failed->retry_after_seconds.value_or(0), 1U);
  ASSERT_TRUE(running->wait());
  EXPECT_FALSE(running->failed);
  expect_idle();
}

TEST_F(serving_limits_test, token_ids_outside_the_vocabulary_never_reach_a_device) {
  start();
  for (const token_id bad : {-1, 258, 1'000'000}) {
    expect_refusal(request(token_prompt{'a', bad}), error_kind::invalid_request, "prompt");
    auto r = request("x");
    r.stop_token_ids = {bad};
    r.min_tokens = 2;
    expect_refusal(r, error_kind::invalid_request, "stop_token_ids");
    r = request("x");
    r.sampling.logit_bias = {{bad, 1.0F}};
    expect_refusal(r, error_kind::invalid_request, "logit_bias");
  }
}

TEST_F(serving_limits_test, nan_passes_no_range_check) {
  start();
  auto r = request("x");
  r.sampling.temperature = std::numeric_limits<float>::quiet_NaN();
  expect_refusal(r, error_kind::invalid_request, "temperature");
  r = request("x");
  r.sampling.logit_bias = {{1, std::numeric_limits<float>::infinity()}};
  expect_refusal(r, error_kind::invalid_request, "logit_bias");
}

TEST_F(serving_limits_test, a_template_error_is_the_clients_and_the_next_request_works) {
  templates = std::make_shared<chat_template>("{{ raise_exception('roles must alternate') }}", "test");
  start();
  chat_prompt chat;
  chat.messages_json = "[]";
  expect_refusal(request(chat), error_kind::invalid_request, "messages");
  auto sink = submit(request("after", 3));
  expect_stream(*sink, "after", 3);
}

TEST_F(serving_limits_test, a_full_queue_is_a_429_with_a_time_to_come_back) {
  options.max_queue = 4;
  options.tokenizer_workers = 1;
  faults->close_gate();
  start();
  for (int i = 0; i < 100; ++i) submit(request("q" + std::to_string(i), 4));
  ASSERT_TRUE(eventually([&] { return metric("troupe_requests_total", "rejected") >= 80; })) << metrics->render();
  faults->open_gate();
  int served = 0;
  for (std::size_t i = 0; i < sinks.size(); ++i) {
    ASSERT_TRUE(sinks[i]->wait());
    if (!sinks[i]->failed) {
      EXPECT_EQ(sinks[i]->choices[0].text, expected_text("q" + std::to_string(i), 4));
      ++served;
      continue;
    }
    EXPECT_EQ(sinks[i]->failed->kind, error_kind::overloaded);
    EXPECT_TRUE(sinks[i]->failed->retry_after_seconds);
  }
  EXPECT_GE(served, 4);
  expect_idle();
}

TEST_F(serving_limits_test, a_request_that_does_not_fit_the_queue_whole_leaves_no_part_behind) {
  options.max_queue = 4;
  faults->close_gate();
  start();
  auto r = request("many", 4);
  r.n = 4;
  std::vector<std::shared_ptr<test::recording_sink>> all;
  for (int i = 0; i < 20; ++i) {
    r.id = ++last_id;
    all.push_back(submit(r));
    std::this_thread::sleep_for(1ms); // past the tokenizer: the scheduler's own bound is meant here
  }
  faults->open_gate();
  for (auto& sink : all) {
    ASSERT_TRUE(sink->wait());
    EXPECT_TRUE(sink->failed ? sink->choices.empty() : sink->choices.size() == 4);
  }
  expect_idle();
}

TEST_F(serving_limits_test, cancel_while_waiting_for_a_tokenizer) {
  options.tokenizer_workers = 1;
  tokens->close_gate();
  start();
  auto first = request("at the tokenizer", 4);
  auto second = request("in the queue", 4);
  auto a = submit(first);
  tokens->await_encoding(1);
  auto b = submit(second);
  server->cancel(second.id);
  ASSERT_TRUE(b->wait());
  EXPECT_EQ(b->failed->kind, error_kind::cancelled);
  server->cancel(first.id);
  ASSERT_TRUE(a->wait());
  EXPECT_EQ(a->failed->kind, error_kind::cancelled);
  tokens->open_gate();
  auto c = submit(request("after", 4));
  expect_stream(*c, "after", 4);
  EXPECT_EQ(metric("troupe_requests_total", "cancelled"), 2);
  expect_idle();
}

TEST_F(serving_limits_test, cancel_while_running_and_cancel_twice_and_cancel_nobody) {
  faults->step_us = 1000;
  start();
  auto r = request("a long story", 400);
  r.ignore_eos = true;
  auto sink = submit(r);
  ASSERT_TRUE(sink->wait_for_outputs(3));
  server->cancel(r.id);
  server->cancel(r.id);
  server->cancel(999'999);
  ASSERT_TRUE(sink->wait());
  EXPECT_EQ(sink->failed->kind, error_kind::cancelled);
  expect_idle();
}

TEST_F(serving_limits_test, hundreds_of_requests_cancelled_at_random_times_leave_nothing) {
  options.max_queue = 10'000;
  faults->step_us = 100;
  start();
  std::mt19937 random(1);
  std::vector<std::string> texts;
  for (int i = 0; i < 300; ++i) {
    texts.push_back("text " + std::to_string(i));
    auto r = request(texts.back(), 1 + static_cast<std::int32_t>(random() % 60));
    r.n = 1 + static_cast<std::int32_t>(random() % 3);
    const auto id = r.id;
    submit(std::move(r));
    if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
    if (random() % 2 == 0) server->cancel(1 + random() % id);
  }
  int cancelled = 0;
  for (std::size_t i = 0; i < sinks.size(); ++i) {
    ASSERT_TRUE(sinks[i]->wait());
    if (sinks[i]->failed) {
      EXPECT_EQ(sinks[i]->failed->kind, error_kind::cancelled);
      ++cancelled;
    }
    for (auto& [index, c] : sinks[i]->choices) EXPECT_EQ(c.text, expected_text(texts[i], 60).substr(0, c.text.size()));
  }
  EXPECT_GT(cancelled, 20);
  EXPECT_EQ(metric("troupe_requests_total", "cancelled"), cancelled);
  EXPECT_EQ(metric("troupe_requests_total", "length") + metric("troupe_requests_total", "stop"), 300 - cancelled);
  expect_idle();
}

TEST_F(serving_limits_test, two_requests_with_one_id_do_not_mix) {
  faults->close_gate();
  start();
  auto r = request("twin", 4);
  auto first = submit(r);
  auto second = submit(r);
  ASSERT_TRUE(second->wait());
  EXPECT_EQ(second->failed->kind, error_kind::internal);
  faults->open_gate();
  expect_stream(*first, "twin", 4);
}

TEST_F(serving_limits_test, draining_refuses_new_requests_and_finishes_old_ones) {
  faults->step_us = 500;
  start();
  auto old = submit(request("old", 60));
  ASSERT_TRUE(old->wait_for_outputs(1));
  server->drain();
  EXPECT_FALSE(server->status().ready);
  EXPECT_TRUE(server->status().draining);
  EXPECT_TRUE(server->status().live);
  expect_refusal(request("new"), error_kind::unavailable, "");
  expect_stream(*old, "old", 60);
}

TEST_F(serving_limits_test, stop_while_busy_ends_every_request_and_answers_every_call) {
  options.tokenizer_workers = 1;
  faults->step_us = 2000;
  start();
  for (int i = 0; i < 20; ++i) submit(request("busy " + std::to_string(i), 400));
  ASSERT_TRUE(sinks[0]->wait_for_outputs(1));
  tokens->close_gate();
  for (int i = 0; i < 5; ++i) submit(request("behind the gate", 4));
  std::promise<result<std::string>> text;
  server->detokenize({'h'}, [&](result<std::string> r) { text.set_value(std::move(r)); });
  tokens->await_encoding(1);
  std::thread opener([&] {
    std::this_thread::sleep_for(100ms);
    tokens->open_gate();
  });
  const auto began = std::chrono::steady_clock::now();
  server->stop();
  EXPECT_LT(std::chrono::steady_clock::now() - began, 9s);
  opener.join();
  for (auto& sink : sinks) ASSERT_TRUE(sink->ended());
  EXPECT_EQ(text.get_future().wait_for(0s), std::future_status::ready);
  EXPECT_FALSE(server->status().live);
  expect_refusal(request("too late"), error_kind::unavailable, "");
  server->stop(); // again: nothing happens
}

} // namespace
} // namespace troupe
