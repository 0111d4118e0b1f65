#include "apps/bench/generation_load.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <thread>

namespace troupe::bench {
namespace {

// Gives a token every 2 ms to each request, from a thread of its own; refuses prompts that begin with token 7.
class pacing_handler final : public request_handler {
 public:
  pacing_handler() { model_.names = {"fake"}; }
  void submit(generation_request request, std::shared_ptr<token_sink> sink) override {
    {
      const std::lock_guard lock(guard_);
      ids.insert(request.id);
      running = running + 1;
      most_running = std::max<int>(most_running, running);
    }
    const auto& prompt = std::get<token_prompt>(request.prompts.front());
    if (prompt.front() == 7) {
      running = running - 1;
      return sink->on_error({error_kind::overloaded, "no sevens", "", std::nullopt});
    }
    crew_.emplace_back([this, sink, tokens = *request.max_tokens, given = static_cast<std::int64_t>(prompt.size())] {
      for (std::int32_t i = 0; i < tokens; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        output_chunk chunk;
        chunk.tokens = {1};
        sink->on_output(chunk);
      }
      running = running - 1;
      sink->on_finished({given, tokens, 0});
    });
  }
  void cancel(request_id) override {}
  void tokenize(tokenize_request, std::function<void(result<tokenize_reply>)>) override {}
  void detokenize(std::vector<token_id>, std::function<void(result<std::string>)>) override {}
  service_status status() const override { return {}; }
  const served_model& model() const override { return model_; }

  std::set<request_id> ids;
  std::atomic<int> running{0};
  int most_running = 0;

 private:
  std::mutex guard_;
  served_model model_;
  std::vector<std::jthread> crew_;
};

TEST(generation_load, the_same_options_give_the_same_load_within_their_ranges) {
  generation_options options;
  options.count = 200;
  options.rate = 50;
  options.input = {3, 9};
  options.output = {4, 6};
  options.vocab_size = 11;
  options.seed = 42;
  const auto load = plan_generations(options), again = plan_generations(options);
  ASSERT_EQ(load.size(), 200U);
  for (std::size_t i = 0; i < load.size(); ++i) {
    EXPECT_EQ(load[i].prompt, again[i].prompt);
    EXPECT_EQ(load[i].due, again[i].due);
    EXPECT_TRUE(load[i].prompt.size() >= 3 && load[i].prompt.size() <= 9);
    EXPECT_TRUE(load[i].output_tokens >= 4 && load[i].output_tokens <= 6);
    for (const token_id t : load[i].prompt) EXPECT_TRUE(t >= 0 && t < 11);
    EXPECT_GE(load[i].due, load[i == 0 ? 0 : i - 1].due);
  }
  EXPECT_NEAR(load.back().due, 4.0, 2.0); // 199 gaps of 20 ms in the mean
}

TEST(generation_load, a_burst_comes_first_with_outputs_cut_short) {
  generation_options options;
  options.count = 500;
  options.burst = 400;
  options.rate = 100;
  options.output = {100, 100};
  const auto load = plan_generations(options);
  double mean = 0;
  for (std::size_t i = 0; i < 400; ++i) {
    EXPECT_EQ(load[i].due, 0);
    EXPECT_TRUE(load[i].output_tokens >= 1 && load[i].output_tokens <= 100);
    mean += load[i].output_tokens / 400.0;
  }
  EXPECT_NEAR(mean, 50.5, 8);
  for (std::size_t i = 400; i < 500; ++i) EXPECT_EQ(load[i].output_tokens, 100);
}

TEST(generation_load, records_what_each_request_came_to) {
  pacing_handler handler;
  generation_options options;
  options.count = 6;
  options.input = {5, 5};
  options.output = {8, 8};
  options.vocab_size = 7; // no sevens
  const auto out = run_generations(handler, plan_generations(options), 0, 10);
  ASSERT_EQ(out.records.size(), 6U);
  EXPECT_EQ(handler.ids, (std::set<request_id>{10, 11, 12, 13, 14, 15}));
  EXPECT_EQ(handler.most_running, 6); // all at once
  for (const request_record& r : out.records) {
    EXPECT_EQ(r.failure, "");
    EXPECT_EQ(r.output_tokens, 8);
    EXPECT_EQ(r.prompt_tokens, 5);
    ASSERT_EQ(r.gaps.size(), 7U);
    for (const double gap : r.gaps) EXPECT_GE(gap, 0.001);
    EXPECT_GE(time_to_first_token(r), 0.001);
    EXPECT_GE(r.ended, r.last);
  }
  EXPECT_EQ(out.steady.gaps, 42U);
  EXPECT_EQ(out.steady.from, 0);
}

TEST(generation_load, gaps_outside_the_wanted_load_do_not_count) {
  pacing_handler handler;
  std::vector<planned_generation> load = {{0, {1}, 30}, {0, {2}, 30}, {0.05, {3}, 40}};
  const auto out = run_generations(handler, load, 2, 1);
  EXPECT_GE(out.steady.from, 0.002);
  EXPECT_NEAR(out.steady.to, out.records[2].sent, 1e-9);
  EXPECT_TRUE(out.records[2].gaps.empty()); // sent last: what it gave came after
  std::size_t gaps = 0;
  for (const auto& r : out.records) gaps += r.gaps.size();
  EXPECT_EQ(gaps, out.steady.gaps);
  EXPECT_GT(gaps, 2U);
  EXPECT_LT(gaps, 58U);
  EXPECT_NEAR(out.steady.concurrency, 2, 0.5);
}

TEST(generation_load, a_refusal_is_a_failure_with_its_reason) {
  pacing_handler handler;
  const auto out = run_generations(handler, {{0, {7}, 3}, {0, {1}, 3}}, 0, 1);
  EXPECT_EQ(out.records[0].failure, "no sevens");
  EXPECT_EQ(out.records[1].failure, "");
  EXPECT_EQ(total(out.records, {}).failed, 1U);
}

} // namespace
} // namespace troupe::bench
