// Devices that fail, hang or do not start, in this process: replay, quarantine, escalation, health.
#include <atomic>
#include <stdexcept>

#include "tests/actors/serving_fixture.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;

using test::eventually;

class serving_faults_test : public test::serving_test {};

TEST_F(serving_faults_test, a_device_lost_in_mid_stream_changes_no_token) {
  faults->fail_at = 25;
  start();
  std::vector<std::string> texts;
  for (int i = 0; i < 12; ++i) texts.push_back("survivor " + std::to_string(i));
  for (const auto& text : texts) submit(request(text, 80));
  for (std::size_t i = 0; i < texts.size(); ++i) expect_stream(*sinks[i], texts[i], 80);
  EXPECT_EQ(faults->made, 2);
  EXPECT_EQ(metric("troupe_device_restarts_total"), 1);
  EXPECT_TRUE(server->status().ready);
  expect_idle();
}

TEST_F(serving_faults_test, sampled_choices_are_replayed_with_their_own_seeds) {
  faults->fail_at = 20;
  start();
  auto r = request("seeded", 60);
  r.n = 4;
  r.seed = 99;
  r.sampling.temperature = 0.8F;
  auto sink = submit(r);
  ASSERT_TRUE(sink->wait());
  sampling_params p = r.sampling;
  p.seed = 99;
  for (std::int32_t i = 0; i < 4; ++i) EXPECT_EQ(sink->choices[i].text, expected_text("seeded", 60, i, &p));
  EXPECT_EQ(faults->made, 2);
}

TEST_F(serving_faults_test, stop_strings_survive_a_replay) {
  std::string text; // one that speaks long enough
  for (int i = 0; text.empty(); ++i) {
    if (expected_text("stop " + std::to_string(i), 60).size() == 60) text = "stop " + std::to_string(i);
  }
  const std::string whole = expected_text(text, 60);
  faults->fail_at = 12;
  start();
  auto r = request(text, 60);
  r.stop_strings = {whole.substr(40, 4)};
  auto sink = submit(r);
  ASSERT_TRUE(sink->wait());
  EXPECT_EQ(sink->choices[0].text, whole.substr(0, whole.find(r.stop_strings[0])));
}

TEST_F(serving_faults_test, a_request_that_kills_devices_is_quarantined_alone) {
  options.max_restarts = 10;
  faults->poison = 'Z';
  faults->step_us = 200;
  start();
  std::vector<std::string> texts;
  for (int i = 0; i < 6; ++i) texts.push_back("innocent " + std::to_string(i));
  for (const auto& text : texts) submit(request(text, 100));
  auto poisoned = submit(request("Z", 100));
  ASSERT_TRUE(poisoned->wait());
  ASSERT_TRUE(poisoned->failed);
  EXPECT_EQ(poisoned->failed->kind, error_kind::internal);
  for (std::size_t i = 0; i < texts.size(); ++i) expect_stream(*sinks[i], texts[i], 100);
  EXPECT_EQ(metric("troupe_requests_total", "failed"), 1);
  expect_idle();
}

TEST_F(serving_faults_test, nan_logits_end_one_request_with_an_error_and_a_count) {
  faults->numeric_fault = 'N';
  start();
  auto bad = submit(request("N", 10));
  auto good = submit(request("fine", 10));
  ASSERT_TRUE(bad->wait());
  EXPECT_EQ(bad->failed->kind, error_kind::internal);
  expect_stream(*good, "fine", 10);
  EXPECT_EQ(metric("troupe_numeric_faults_total"), 1);
  EXPECT_EQ(faults->made, 1) << "the device itself is well";
}

TEST_F(serving_faults_test, too_many_losses_escalate_and_nobody_waits_in_silence) {
  options.max_restarts = 2;
  faults->poison = 'Z';
  start();
  for (int i = 0; i < 6; ++i) submit(request("Z" + std::to_string(i), 10));
  for (auto& sink : sinks) {
    ASSERT_TRUE(sink->wait());
    EXPECT_TRUE(sink->failed);
  }
  ASSERT_TRUE(eventually([&] { return !server->status().live; }));
  EXPECT_FALSE(server->status().ready);
  EXPECT_NE(server->status().reason, "");
  auto late = submit(request("late"));
  ASSERT_TRUE(late->wait());
  EXPECT_EQ(late->failed->kind, error_kind::unavailable);
  EXPECT_EQ(faults->made, 3);
}

TEST_F(serving_faults_test, a_step_that_hangs_is_noticed_by_its_deadline) {
  options.step_deadline = 300ms;
  start();
  faults->close_gate(1); // the first device only
  auto sink = submit(request("stuck", 20));
  expect_stream(*sink, "stuck", 20);
  EXPECT_EQ(faults->made, 2);
  EXPECT_TRUE(server->status().live);
  expect_idle();
}

TEST_F(serving_faults_test, while_a_device_is_replaced_requests_queue_and_it_stays_ready) {
  options.step_deadline = 300ms;
  start();
  faults->close_gate(1);
  auto first = submit(request("first", 20));
  std::this_thread::sleep_for(100ms);
  EXPECT_TRUE(server->status().ready);
  auto second = submit(request("second", 20));
  expect_stream(*first, "first", 20);
  expect_stream(*second, "second", 20);
}

TEST_F(serving_faults_test, cancel_while_its_device_is_gone) {
  options.step_deadline = 200ms;
  start();
  faults->close_gate(); // all devices
  auto r = request("nowhere", 20);
  auto sink = submit(r);
  ASSERT_TRUE(eventually([&] { return faults->made >= 2; }));
  server->cancel(r.id);
  ASSERT_TRUE(sink->wait());
  EXPECT_TRUE(sink->failed);
  faults->open_gate();
  auto after = submit(request("after", 5));
  expect_stream(*after, "after", 5);
  expect_idle();
}

TEST_F(serving_faults_test, a_device_that_does_not_start_is_an_error_of_start) {
  faults->starts_to_fail = 1;
  try {
    start();
    FAIL() << "started";
  } catch (const std::runtime_error& e) {
    EXPECT_STREQ(e.what(), "the fake device does not start");
  }
}

TEST_F(serving_faults_test, a_bad_checkpoint_stays_a_load_error) {
  actors::serving_parts parts;
  parts.tokens = tokens;
  parts.metrics = metrics;
  parts.make_executor = [](const actors::rank_start&, const actors::publish_rendezvous&) -> std::unique_ptr<step_executor> {
    throw load_error("model.gguf: no tensor");
  };
  EXPECT_THROW(actors::serving::start(options, std::move(parts)), load_error);
}

TEST_F(serving_faults_test, limits_that_cannot_work_together_are_an_error_of_start) {
  device.max_batched_tokens = 1;
  EXPECT_THROW(start(), std::runtime_error);
}

TEST_F(serving_faults_test, a_replacement_that_fails_to_start_is_tried_again) {
  faults->fail_at = 10;
  start();
  faults->starts_to_fail = 2;
  auto sink = submit(request("again", 40));
  expect_stream(*sink, "again", 40);
  EXPECT_EQ(faults->made, 4);
}

class throwing_sink final : public token_sink {
 public:
  void on_prompt(const prompt_report&) override {}
  void on_output(const output_chunk&) override { throw std::runtime_error("a sink must not throw"); }
  void on_finished(const usage_report&) override { ++ends; }
  void on_error(const error&) override { ++ends; }
  std::atomic<int> ends{0};
};

TEST_F(serving_faults_test, an_actor_that_fails_takes_health_with_it_and_nobody_waits_in_silence) {
  faults->step_us = 1000;
  start();
  for (int i = 0; i < 3; ++i) {
    auto r = request("beside it " + std::to_string(i), 400);
    r.ignore_eos = true;
    submit(std::move(r));
  }
  ASSERT_TRUE(sinks[2]->wait_for_outputs(1));
  auto bad = std::make_shared<throwing_sink>();
  server->submit(request("breaks the rules", 10), bad);
  for (auto& sink : sinks) {
    ASSERT_TRUE(sink->wait());
    EXPECT_TRUE(sink->failed);
  }
  EXPECT_TRUE(eventually([&] { return bad->ends == 1; }));
  EXPECT_FALSE(server->status().live);
}

TEST_F(serving_faults_test, devices_are_destroyed_by_the_time_stop_returns) {
  faults->fail_at = 5;
  start();
  auto sink = submit(request("gone", 20));
  expect_stream(*sink, "gone", 20);
  server->stop();
  EXPECT_EQ(faults->gone, faults->made);
}

} // namespace
} // namespace troupe
