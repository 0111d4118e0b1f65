// What the tests of the GPU executor share: the skip where there is no GPU, options, and a CPU executor that says what is right.
#pragma once

#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "models/gpu_executor.hpp"
#include "tests/models/executor_testing.hpp"

namespace troupe::test {

class gpu_model_test : public ::testing::Test {
 protected:
  void SetUp() override {
    if (gpu_count() == 0) GTEST_SKIP() << "no CUDA device on this machine";
  }
};

inline gpu_executor_options small_gpu_options() {
  gpu_executor_options options;
  options.type = dtype::f16;
  options.max_num_seqs = 8;
  options.max_batched_tokens = 256;
  options.num_blocks = 64;
  options.tune = false;
  return options;
}

// Shapes that the quick kernels take: heads of `head_dim`, several queries to a KV head, odd numbers of rows everywhere.
inline model_config quick_config(std::int32_t head_dim) {
  model_config c;
  c.family = "llama";
  c.vocab_size = 1003;
  c.hidden_size = 256;
  c.intermediate_size = 328;
  c.num_layers = 3;
  c.num_heads = 6;
  c.num_kv_heads = 2;
  c.head_dim = head_dim;
  c.rope.rotary_dim = head_dim;
  c.max_position = 512;
  return c;
}

// What is compared: per position of `text` the logprob of the next token, and what is drawn behind it.
struct prompt_report {
  std::vector<token_scores> scores;
  tokens drawn;
  std::vector<token_scores> drawn_scores;
};

// Scores `text` in chunks of `chunk` tokens, draws `count` tokens greedily.
inline prompt_report report(step_executor& executor, const tokens& text, std::size_t chunk, std::size_t count, slot_id slot = 0,
                            std::uint32_t seed = 1) {
  plan_writer writer(executor, seed);
  static epoch_number epoch = 0; // one writer after another on the same executor
  writer.plan.epoch = ++epoch;
  prompt_report out;
  sampling_params params = greedy();
  params.top_logprobs = 4;
  const auto length = static_cast<std::int32_t>(text.size());
  const auto take = [&](const slot_output& o) {
    out.scores.insert(out.scores.end(), o.prompt_scores.begin(), o.prompt_scores.end());
    out.drawn.insert(out.drawn.end(), o.tokens.begin(), o.tokens.end());
    out.drawn_scores.insert(out.drawn_scores.end(), o.scores.begin(), o.scores.end());
  };
  writer.open(slot, length, params, length + static_cast<std::int32_t>(count));
  for (std::size_t at = 0; at < text.size(); at += chunk) {
    const std::size_t end = std::min(text.size(), at + chunk);
    const bool last = end == text.size();
    writer.prefill(slot, static_cast<std::int32_t>(at), part_of(text, at, last ? end : end + 1), last, 4, !last);
    take(writer.run()[0]);
  }
  while (out.drawn.size() < count) {
    writer.decode(slot, length + static_cast<std::int32_t>(out.drawn.size()) - 1);
    const slot_output o = writer.run()[0];
    if (o.tokens.size() != 1) break;
    take(o);
  }
  writer.close(slot);
  writer.run();
  return out;
}

// Logprobs within `tolerance`, and a little more where they are large; drawn tokens equal up to the first place where the two best lie that
// close together.
inline void expect_close(const prompt_report& got, const prompt_report& right, float tolerance) {
  const auto allowed = [tolerance](float logprob) { return tolerance * (1 - logprob / 5); };
  ASSERT_EQ(got.scores.size(), right.scores.size());
  for (std::size_t i = 0; i < got.scores.size(); ++i) {
    EXPECT_EQ(got.scores[i].chosen.token, right.scores[i].chosen.token);
    ASSERT_NEAR(got.scores[i].chosen.logprob, right.scores[i].chosen.logprob, allowed(right.scores[i].chosen.logprob))
        << "prompt token " << i + 1;
    ASSERT_EQ(got.scores[i].top.size(), right.scores[i].top.size());
    for (std::size_t j = 0; j < got.scores[i].top.size(); ++j) {
      ASSERT_NEAR(got.scores[i].top[j].logprob, right.scores[i].top[j].logprob, allowed(right.scores[i].top[j].logprob))
          << "prompt token " << i + 1 << ", best " << j;
    }
  }
  ASSERT_EQ(got.drawn.size(), right.drawn.size());
  for (std::size_t i = 0; i < got.drawn.size(); ++i) {
    ASSERT_NEAR(got.drawn_scores[i].chosen.logprob, right.drawn_scores[i].chosen.logprob, allowed(right.drawn_scores[i].chosen.logprob))
        << "drawn token " << i;
    if (got.drawn[i] == right.drawn[i]) continue;
    const auto& best = right.drawn_scores[i].top;
    EXPECT_LT(best[0].logprob - best[1].logprob, 2 * tolerance) << "drawn token " << i << " differs, and it was no near tie";
    break; // the texts part here
  }
}

// For what takes two.
class gpu_pair_test : public ::testing::Test {
 protected:
  void SetUp() override {
    if (gpu_count() < 2) GTEST_SKIP() << "fewer than two CUDA devices on this machine";
  }
  static tokens random_tokens(std::size_t count) { // of quick_config()'s vocabulary
    std::mt19937 random(std::random_device{}());
    tokens text;
    for (std::size_t i = 0; i < count; ++i) text.push_back(static_cast<token_id>(random() % 1003));
    return text;
  }

  struct asked_prompt {
    tokens prompt;
    std::size_t chunk;
    prompt_report right;
  };

  // Short and long prompts, each in one chunk and in several, as one GPU answers them.
  static std::vector<asked_prompt> ask(step_executor& one) {
    std::vector<asked_prompt> all;
    for (const std::size_t length : {1U, 17U, 200U}) {
      for (const std::size_t chunk : {256U, 23U}) {
        tokens prompt = random_tokens(length);
        prompt_report right = report(one, prompt, chunk, 16);
        all.push_back({std::move(prompt), chunk, std::move(right)});
      }
    }
    return all;
  }

  // Two GPUs answer them alike; to the token where they are to be `equal`.
  static void expect_same_answers(step_executor& two, const std::vector<asked_prompt>& all, float tolerance, bool equal) {
    for (const asked_prompt& asked : all) {
      SCOPED_TRACE(std::to_string(asked.prompt.size()) + " tokens in chunks of " + std::to_string(asked.chunk));
      const prompt_report got = report(two, asked.prompt, asked.chunk, 16, 3, 9);
      expect_close(got, asked.right, tolerance);
      if (equal) {
        EXPECT_EQ(got.drawn, asked.right.drawn);
      }
    }
  }
};

} // namespace troupe::test
