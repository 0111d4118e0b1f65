#include "apps/bench/step_driver.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "apps/bench/ablation.hpp"
#include "apps/bench/latency.hpp"
#include "core/json.hpp"
#include "tests/actors/fake_device.hpp"

namespace troupe::bench {
namespace {

using test::device_faults;
using test::fake_device;

// The fake device behind a thread of its own, as a GPU's executor delivers.
class late_device final : public step_executor {
 public:
  explicit late_device(std::unique_ptr<step_executor> inner) : inner_(std::move(inner)), worker_([this] { work(); }) {}
  ~late_device() override {
    {
      const std::lock_guard lock(guard_);
      stop_ = true;
      changed_.notify_all();
    }
    worker_.join();
  }
  executor_info info() const override { return inner_->info(); }
  void submit(const step_plan& plan, deliver_fn deliver) override {
    const std::lock_guard lock(guard_);
    jobs_.push_back({plan, std::move(deliver)});
    most_waiting = std::max(most_waiting, jobs_.size());
    changed_.notify_all();
  }

  std::size_t most_waiting = 0; // read when idle

 private:
  void work() {
    while (true) {
      std::unique_lock lock(guard_);
      changed_.wait(lock, [&] { return stop_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      const auto job = jobs_.front(); // stays in the queue until its result is there
      lock.unlock();
      inner_->submit(job.first, [&](step_outcome outcome) {
        lock.lock();
        jobs_.pop_front();
        lock.unlock();
        job.second(std::move(outcome));
      });
    }
  }

  std::unique_ptr<step_executor> inner_;
  std::mutex guard_;
  std::condition_variable changed_;
  std::deque<std::pair<step_plan, deliver_fn>> jobs_;
  bool stop_ = false;
  std::thread worker_;
};

class step_driver_test : public testing::Test {
 protected:
  std::unique_ptr<step_executor> device() const { return std::make_unique<fake_device>(test::small_device(), faults_); }

  // Greedy outputs without end tokens.
  static std::vector<token_id> expected(const std::vector<token_id>& prompt, std::int32_t tokens) {
    sampling_params greedy;
    greedy.temperature = 0;
    stop_conditions stop;
    stop.max_tokens = tokens;
    return test::expected_tokens(prompt, greedy, stop);
  }

  std::shared_ptr<device_faults> faults_ = std::make_shared<device_faults>();
  telemetry::timeline timeline_;
};

TEST_F(step_driver_test, computes_what_the_serving_side_would) {
  const auto executor = device();
  step_driver driver(*executor, timeline_);
  for (const std::int32_t in_flight : {1, 2}) {
    const auto prompts = random_prompts(5, 20, test::kVocab, static_cast<std::uint64_t>(in_flight));
    const driven_run run = driver.run(prompts, {12, in_flight, std::nullopt});
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      EXPECT_EQ(run.outputs[i], expected(prompts[i], 12));
      EXPECT_GE(run.finished_ns[i], run.first_token_ns[i]);
      EXPECT_GT(run.first_token_ns[i], run.begin_ns);
    }
  }
}

TEST_F(step_driver_test, keeps_as_many_plans_in_flight_as_asked) {
  for (const std::int32_t in_flight : {1, 2}) {
    late_device late(device());
    faults_->step_us = 200;
    step_driver driver(late, timeline_);
    const auto prompts = random_prompts(3, 10, test::kVocab, 3);
    const driven_run run = driver.run(prompts, {10, in_flight, std::nullopt});
    for (std::size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(run.outputs[i], expected(prompts[i], 10));
    EXPECT_EQ(late.most_waiting, static_cast<std::size_t>(in_flight));
  }
}

TEST_F(step_driver_test, intervals_are_of_steps_that_decode_every_row) {
  const auto executor = device();
  faults_->step_us = 500;
  step_driver driver(*executor, timeline_);
  const driven_run run = driver.run(random_prompts(4, 40, test::kVocab, 4), {30, 2, std::nullopt}); // 160 tokens: three steps of 64
  const auto intervals = decode_intervals(run, 4, 2);
  ASSERT_GT(intervals.size(), 10U);
  for (const decode_interval& i : intervals) {
    EXPECT_GE(i.ms, 0.5);
    EXPECT_EQ(i.step->decode_positions.size(), 4U);
    EXPECT_EQ(i.step->prefill_tokens, 0);
    for (const std::int32_t position : i.step->decode_positions) EXPECT_GE(position, 40);
  }
  EXPECT_EQ(decode_intervals(run, 4, 0).size(), intervals.size() + 2);
  EXPECT_TRUE(decode_intervals(run, 5, 0).empty());
}

TEST_F(step_driver_test, stops_after_enough_steps_and_can_run_again) {
  const auto executor = device();
  step_driver driver(*executor, timeline_);
  const driven_run cut = driver.run(random_prompts(2, 8, test::kVocab, 5), {100, 2, 10});
  EXPECT_GE(decode_intervals(cut, 2, 0).size(), 9U);
  EXPECT_LT(cut.steps.size(), 20U);
  EXPECT_EQ(cut.finished_ns, (std::vector<std::uint64_t>{0, 0}));
  const auto prompts = random_prompts(8, 30, test::kVocab, 6); // all slots, so the old ones must be free again
  const driven_run whole = driver.run(prompts, {5, 2, std::nullopt});
  for (std::size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(whole.outputs[i], expected(prompts[i], 5));
}

TEST_F(step_driver_test, a_request_that_cannot_fit_and_a_step_that_fails_are_told) {
  const auto executor = device();
  step_driver driver(*executor, timeline_);
  EXPECT_THROW(driver.run(random_prompts(1, 600, test::kVocab, 7), {1, 2, std::nullopt}), std::runtime_error);
  driver.run(random_prompts(1, 20, test::kVocab, 8), {3, 2, std::nullopt});
  faults_->numeric_fault = random_prompts(1, 20, test::kVocab, 9).front().front();
  EXPECT_THROW(driver.run(random_prompts(1, 20, test::kVocab, 9), {3, 2, std::nullopt}), std::runtime_error);
}

TEST_F(step_driver_test, ablation_sees_which_variant_is_slower) {
  auto slow_faults = std::make_shared<device_faults>();
  faults_->step_us = 1000;
  slow_faults->step_us = 3000;
  fake_device fast(test::small_device(), faults_), slow(test::small_device(), slow_faults);
  step_driver full(fast, timeline_), crippled(slow, timeline_);
  const auto figures = run_ablation({{"full", &full, 2}, {"crippled", &crippled, 2}}, {4, 16, 8, 3, 1});
  ASSERT_EQ(figures.size(), 2U);
  EXPECT_DOUBLE_EQ(figures[0].step_ratio, 1.0);
  EXPECT_GT(figures[1].step_ratio, 1.5);
  EXPECT_GT(figures[1].end_to_end_ratio, 1.5);
  EXPECT_EQ(figures[1].end_to_end.count, 3U);
  EXPECT_EQ(ablation_json(figures).at(1).find("name")->as_string(), "crippled");
  EXPECT_THAT(ablation_table(figures), testing::HasSubstr("crippled"));
}

TEST_F(step_driver_test, a_variant_that_fails_does_not_take_the_others_figures_with_it) {
  auto broken_faults = std::make_shared<device_faults>();
  broken_faults->poison = random_prompts(4, 16, test::kVocab, 3).front().front(); // a token of the second round
  fake_device sound(test::small_device(), faults_), broken(test::small_device(), broken_faults);
  step_driver full(sound, timeline_), other(broken, timeline_);
  const auto figures = run_ablation({{"full", &full, 2}, {"broken", &other, 2}, {"one ahead off", &full, 1}}, {4, 16, 8, 3, 1});
  EXPECT_EQ(figures.at(0).failure, "");
  EXPECT_NE(figures.at(1).failure, "");
  EXPECT_EQ(figures.at(2).end_to_end.count, 3U);
  EXPECT_EQ(ablation_json(figures).size(), 2U);
  EXPECT_THAT(ablation_table(figures), testing::HasSubstr("FAILED"));
  EXPECT_THROW(run_ablation({{"broken", &other, 2}}, {4, 16, 8, 3, 1}), std::runtime_error);
}

// Shapes whose arithmetic can be done in the head.
std::shared_ptr<const checkpoint> tiny_model() {
  return open_checkpoint_without_weights(std::filesystem::path(TROUPE_SOURCE_DIR) / "bench/configs/tiny");
}

TEST_F(step_driver_test, latency_measures_the_context_that_was_asked_for) {
  executor_info info = test::small_device();
  latency_options options;
  options.batch_sizes = {1, 6};
  options.context = 100;
  options.steps = 20;
  options.warmup = 2;
  options.prompt_lengths = {60};
  options.repeats = 3;
  const latency_needs needs = needs_of(options, info.block_size, std::nullopt);
  info.max_num_seqs = needs.max_num_seqs;
  info.max_batched_tokens = needs.max_batched_tokens;
  info.max_model_len = needs.max_model_len;
  info.num_blocks = needs.num_blocks; // no more than it says it needs
  EXPECT_EQ(needs.max_num_seqs, 6);
  faults_->step_us = 300;
  fake_device executor(info, faults_);
  step_driver driver(executor, timeline_);
  const model_cost cost(*tiny_model(), dtype::bf16, dtype::bf16);
  for (const std::int32_t batch : options.batch_sizes) {
    const decode_figures f = measure_decode(driver, timeline_, options, batch, cost);
    EXPECT_GE(f.step.count, 20U);
    EXPECT_NEAR(f.context, 100, 8) << batch;
    EXPECT_GE(f.step.median, 300e-6);
    EXPECT_GT(f.bytes, static_cast<double>(cost.weight_bytes()) + batch * 90.0 * static_cast<double>(cost.kv_bytes(0)));
    const rate_ceilings ceilings{f.bytes / 150e-6, 0};
    EXPECT_NEAR(*over_floor(f, ceilings), f.step.median / 150e-6, 1e-6);
    EXPECT_FALSE(over_floor(f, {}));
  }
  const prefill_figures p = measure_prefill(driver, options, 60, cost);
  EXPECT_EQ(p.first_token.count, 3U);
  EXPECT_GE(p.first_token.median, 300e-6);
  EXPECT_NEAR(*matmul_share(p, {1, (p.linear_flops + p.attention_flops) / p.first_token.median}), 1.0, 1e-9);
  EXPECT_FALSE(matmul_share(p, {1, 0}));
}

TEST(latency_report, has_a_row_for_each_figure_and_says_what_is_unknown) {
  latency_figures figures;
  decode_figures d;
  d.batch = 8;
  d.context = 1024;
  d.step = summarize({0.004, 0.004, 0.005});
  d.bytes = 4e9;
  figures.decode.push_back(d);
  prefill_figures p;
  p.prompt = 512;
  p.first_token = summarize({0.02});
  p.linear_flops = 1e12;
  figures.prefill.push_back(p);
  EXPECT_THAT(latency_table(figures, {2e12, 1e14}), testing::AllOf(testing::HasSubstr("2.000 x"), testing::HasSubstr("50.0%")));
  EXPECT_THAT(latency_table(figures, {}), testing::Not(testing::HasSubstr(" x ")));
  const value known = decode_json(figures.decode, {2e12, 1e14}).front(), blind = decode_json(figures.decode, {}).front();
  EXPECT_DOUBLE_EQ(known.find("over_floor")->as_double(), 2.0);
  EXPECT_DOUBLE_EQ(known.find("floor_ms")->as_double(), 2.0);
  EXPECT_TRUE(blind.find("over_floor")->is_null());
  EXPECT_DOUBLE_EQ(prefill_json(figures.prefill, {2e12, 1e14}).front().find("matmul_share")->as_double(), 0.5);
}

TEST(model_cost, counts_the_weights_once_and_each_rows_keys_and_values) {
  const auto source = tiny_model(); // hidden 256, 4 layers, 4 heads of 64, 2 KV heads, MLP 512, vocabulary 1024
  const model_cost cost(*source, dtype::bf16, dtype::f16);
  const std::size_t layer = 256 * (256 + 128 + 128) + 256 * 256 + 3 * 256 * 512;
  EXPECT_EQ(cost.weight_bytes(), 2 * (4 * layer + 1024 * 256) + 4 * (9 * 256)); // norms are floats
  EXPECT_EQ(cost.kv_bytes(0), 4U * 2 * 2 * 64 * 2);
  EXPECT_EQ(cost.kv_bytes(99), 100 * cost.kv_bytes(0));
  EXPECT_DOUBLE_EQ(cost.linear_flops(10), 2.0 * (4.0 * layer * 10 + 256.0 * 1024));
  EXPECT_DOUBLE_EQ(cost.attention_flops(10), 4.0 * (4 * 55.0) * 4 * 64);
}

} // namespace
} // namespace troupe::bench
