#include "models/cpu_executor.hpp"

#include <cmath>
#include <limits>

#include "core/error.hpp"
#include "tests/models/executor_testing.hpp"

namespace troupe {
namespace {

using test::generate;
using test::greedy;
using test::part_of;
using test::plan_writer;
using test::tokens;

class cpu_executor_test : public ::testing::Test {
 protected:
  cpu_executor_test() : weights_(test::tiny_weights("llama3-gqa")), prompts_(test::expected_prompts("llama3-gqa")) {}

  std::unique_ptr<step_executor> make() { return make_cpu_executor(weights_, test::small_options()); }

  // log softmax of one expected row
  double log_probability(const test::expected_prompt& prompt, std::size_t row, token_id token) const {
    const float* logits = prompt.logits.data() + row * 200;
    double sum = 0;
    for (int i = 0; i < 200; ++i) sum += std::exp(static_cast<double>(logits[i]));
    return static_cast<double>(logits[token]) - std::log(sum);
  }

  // The weights with infinities for the embedding of `token`; `table` holds it.
  std::shared_ptr<const model_weights> poisoned(token_id token, std::vector<float>& table) const {
    auto damaged = std::make_shared<model_weights>(*weights_);
    const std::size_t row = static_cast<std::size_t>(damaged->config.hidden_size);
    table.resize(static_cast<std::size_t>(damaged->config.vocab_size) * row);
    std::copy_n(reinterpret_cast<const float*>(weights_->embedding.data), table.size(), table.begin());
    std::fill_n(table.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(token) * row), row,
                std::numeric_limits<float>::infinity());
    damaged->embedding.data = reinterpret_cast<const std::byte*>(table.data());
    return damaged;
  }

  std::shared_ptr<const model_weights> weights_;
  std::vector<test::expected_prompt> prompts_;
};

TEST_F(cpu_executor_test, prompt_scores_are_one_per_token_after_the_first_whatever_the_chunks) {
  const auto executor = make();
  plan_writer writer(*executor);
  const test::expected_prompt& prompt = prompts_[3];
  const std::size_t block = 8;
  for (const std::size_t length : {block - 1, block, block + 1, 2 * block + 1, std::size_t{90}}) {
    for (const std::size_t chunk : {std::size_t{100}, block, std::size_t{5}, std::size_t{1}}) {
      writer.open(0, static_cast<std::int32_t>(length), greedy(), static_cast<std::int32_t>(length));
      std::vector<token_scores> scores;
      for (std::size_t at = 0; at < length; at += chunk) {
        const std::size_t end = std::min(length, at + chunk);
        writer.prefill(0, static_cast<std::int32_t>(at), part_of(prompt.tokens, at, std::min(length, end + 1)), false, 3, end < length);
        const std::vector<slot_output> outputs = writer.run();
        EXPECT_TRUE(outputs[0].tokens.empty());
        scores.insert(scores.end(), outputs[0].prompt_scores.begin(), outputs[0].prompt_scores.end());
      }
      writer.close(0);
      ASSERT_EQ(scores.size(), length - 1) << length << " tokens in chunks of " << chunk;
      for (std::size_t i = 0; i + 1 < length; ++i) {
        EXPECT_EQ(scores[i].chosen.token, prompt.tokens[i + 1]);
        ASSERT_NEAR(scores[i].chosen.logprob, log_probability(prompt, i, prompt.tokens[i + 1]), 1e-4) << "position " << i;
        ASSERT_EQ(scores[i].top.size(), 3U);
        EXPECT_GE(scores[i].top[0].logprob, scores[i].top[1].logprob);
        EXPECT_NEAR(scores[i].top[2].logprob, log_probability(prompt, i, scores[i].top[2].token), 1e-4);
      }
    }
  }
}

TEST_F(cpu_executor_test, a_refill_scores_prompt_tokens_only) {
  const auto executor = make();
  plan_writer writer(*executor);
  writer.open(0, 10, greedy(), 20);
  writer.prefill(0, 0, part_of(prompts_[3].tokens, 0, 14), true, 0); // 10 of the prompt, 4 outputs
  const slot_output output = writer.run()[0];
  EXPECT_EQ(output.prompt_scores.size(), 9U);
  EXPECT_TRUE(output.prompt_scores[0].top.empty());
  EXPECT_EQ(output.tokens.size(), 1U);
}

TEST_F(cpu_executor_test, logprobs_of_drawn_tokens_are_raw_and_best_first) {
  const auto executor = make();
  plan_writer writer(*executor);
  sampling_params sampling = greedy();
  sampling.top_logprobs = 5;
  sampling.logit_bias = {{17, 100.0F}}; // drawn, but not likely by itself
  writer.open(0, 33, sampling, 40);
  writer.prefill(0, 0, prompts_[2].tokens, true);
  const slot_output output = writer.run()[0];
  ASSERT_EQ(output.tokens, tokens{17});
  ASSERT_EQ(output.scores.size(), 1U);
  EXPECT_NEAR(output.scores[0].chosen.logprob, log_probability(prompts_[2], 32, 17), 1e-4);
  ASSERT_EQ(output.scores[0].top.size(), 5U);
  EXPECT_EQ(output.scores[0].top[0].token, prompts_[2].greedy[0]);
  for (int i = 1; i < 5; ++i)
    EXPECT_GE(output.scores[0].top[static_cast<std::size_t>(i - 1)].logprob, output.scores[0].top[static_cast<std::size_t>(i)].logprob);
}

TEST_F(cpu_executor_test, exactly_min_tokens_outputs_come_before_a_forced_end_token) {
  for (const std::int32_t least : {0, 1, 4}) {
    const auto executor = make();
    plan_writer writer(*executor);
    sampling_params sampling = greedy();
    sampling.logit_bias = {{2, 100.0F}, {3, 90.0F}};
    sampling.min_tokens = least;
    if (least > 0) sampling.suppressed = {2, 3};
    const tokens drawn = generate(writer, 0, prompts_[2].tokens, sampling, 6);
    ASSERT_EQ(drawn.size(), 6U);
    for (std::int32_t i = 0; i < 6; ++i) {
      if (i < least)
        EXPECT_TRUE(drawn[static_cast<std::size_t>(i)] != 2 && drawn[static_cast<std::size_t>(i)] != 3);
      else
        EXPECT_EQ(drawn[static_cast<std::size_t>(i)], 2);
    }
  }
}

TEST_F(cpu_executor_test, penalties_count_outputs_apart_from_the_prompt) {
  const auto executor = make();
  plan_writer writer(*executor);
  const token_id first = prompts_[2].greedy[0];
  sampling_params sampling = greedy();
  sampling.logit_bias = {{first, 100.0F}};
  sampling.frequency_penalty = 2.0F; // the 51st occurrence would be the first to lose; a presence penalty of the prompt would be seen
  EXPECT_EQ(generate(writer, 0, prompts_[2].tokens, sampling, 3), (tokens{first, first, first}));
  sampling.logit_bias = {{first, 3.0F}};
  sampling.presence_penalty = 2.0F;
  const tokens drawn = generate(writer, 0, prompts_[2].tokens, sampling, 6);
  EXPECT_EQ(drawn[0], first);
  EXPECT_NE(drawn, tokens(6, first));
}

TEST_F(cpu_executor_test, a_copied_block_carries_the_sequence_on) {
  const auto executor = make();
  plan_writer writer(*executor);
  const tokens& prompt = prompts_[2].tokens; // 33 tokens: blocks 0..3 full, one token in the next
  writer.open(0, 33, greedy(), 48);
  writer.prefill(0, 0, prompt, true);
  const std::vector<block_id> mine = writer.plan.grants[0].blocks;
  EXPECT_EQ(writer.run()[0].tokens[0], prompts_[2].greedy[0]);
  // A second slot shares the full blocks and takes a copy of the last one; each goes on by itself.
  writer.open(1, 33, greedy(), 48);
  std::vector<block_id>& theirs = writer.plan.grants[0].blocks;
  writer.plan.copies = {{mine[4], theirs[4]}};
  std::copy(mine.begin(), mine.begin() + 4, theirs.begin());
  writer.prefill(1, 32, {prompt[32]}, true);
  writer.decode(0, 33);
  const std::vector<slot_output> outputs = writer.run();
  EXPECT_EQ(outputs[0].tokens[0], prompts_[2].greedy[0]);
  EXPECT_EQ(outputs[1].tokens[0], prompts_[2].greedy[1]);
  writer.decode(1, 33);
  writer.decode(0, 34);
  const std::vector<slot_output> next = writer.run();
  EXPECT_EQ(next[0].tokens[0], prompts_[2].greedy[1]);
  EXPECT_EQ(next[1].tokens[0], prompts_[2].greedy[2]);
}

TEST_F(cpu_executor_test, verified_drafts_give_the_greedy_tokens_up_to_the_first_wrong_one) {
  const tokens& right = prompts_[2].greedy;
  for (std::size_t good = 0; good <= 4; ++good) {
    const auto executor = make();
    plan_writer writer(*executor);
    writer.open(0, 33, greedy(), 64);
    writer.prefill(0, 0, prompts_[2].tokens, true);
    writer.run();
    tokens drafts = part_of(right, 1, 5);
    if (good < 4) drafts[good] = (drafts[good] + 1) % 200;
    writer.verify(0, 33, drafts);
    const tokens drawn = writer.run()[0].tokens;
    EXPECT_EQ(drawn, part_of(right, 1, 2 + good));
    const auto position = static_cast<std::int32_t>(33 + drawn.size());
    writer.decode(0, position);
    EXPECT_EQ(writer.run()[0].tokens, part_of(right, 2 + good, 3 + good)) << "the rejected drafts' keys and values were used";
  }
}

TEST_F(cpu_executor_test, verified_draws_with_penalties_equal_plain_decoding) {
  sampling_params sampling;
  sampling.seed = 11;
  sampling.frequency_penalty = 1.5F;
  sampling.repetition_penalty = 1.2F;
  const auto plain = make();
  plan_writer one_by_one(*plain);
  const tokens right = generate(one_by_one, 0, prompts_[2].tokens, sampling, 10);
  const auto executor = make();
  plan_writer writer(*executor);
  writer.open(0, 33, sampling, 64);
  writer.prefill(0, 0, prompts_[2].tokens, true);
  tokens drawn = writer.run()[0].tokens;
  while (drawn.size() < 9) {
    tokens drafts = part_of(right, drawn.size(), std::min<std::size_t>(10, drawn.size() + 3));
    if (drawn.size() % 2 == 0) drafts.back() = (drafts.back() + 7) % 200;
    writer.verify(0, 32 + static_cast<std::int32_t>(drawn.size()), drafts);
    const tokens more = writer.run()[0].tokens;
    ASSERT_FALSE(more.empty());
    drawn.insert(drawn.end(), more.begin(), more.end());
  }
  drawn.resize(std::min<std::size_t>(drawn.size(), 10));
  EXPECT_EQ(drawn, part_of(right, 0, drawn.size()));
}

TEST_F(cpu_executor_test, logits_that_are_not_numbers_end_their_sequence_and_no_other) {
  // A scaled-up embedding row overflows the f16 cache of whoever reads that token.
  std::vector<float> table;
  const auto executor = make_cpu_executor(poisoned(123, table), test::small_options());
  const auto healthy = make_cpu_executor(weights_, test::small_options());
  plan_writer writer(*executor), other(*healthy);
  tokens bad = prompts_[2].tokens;
  bad[20] = 123;
  tokens good = prompts_[2].tokens;
  std::replace(good.begin(), good.end(), 123, 124);
  sampling_params scored = greedy();
  scored.top_logprobs = 2;
  writer.open(0, 33, greedy(), 48);
  writer.open(1, 33, greedy(), 48);
  writer.open(2, 33, scored, 48);
  writer.prefill(0, 0, good, true);
  writer.prefill(1, 0, bad, true);
  writer.prefill(2, 0, bad, true, 1);
  other.open(0, 33, greedy(), 48);
  other.prefill(0, 0, good, true);
  const std::vector<slot_output> outputs = writer.run();
  EXPECT_EQ(outputs[0].tokens, other.run()[0].tokens);
  EXPECT_FALSE(outputs[0].numeric_fault);
  for (const std::size_t slot : {1U, 2U}) {
    EXPECT_TRUE(outputs[slot].numeric_fault);
    EXPECT_TRUE(outputs[slot].tokens.empty() && outputs[slot].scores.empty() && outputs[slot].prompt_scores.empty());
  }
  // The next plan was made before the fault was known.
  for (slot_id slot = 0; slot < 3; ++slot) writer.decode(slot, 33);
  other.decode(0, 33);
  const std::vector<slot_output> next = writer.run();
  EXPECT_EQ(next[0].tokens, other.run()[0].tokens);
  EXPECT_TRUE(next[1].numeric_fault && next[2].numeric_fault);
  EXPECT_TRUE(next[1].tokens.empty() && next[2].tokens.empty());
  // Slot and blocks serve the next sequence.
  writer.close(1);
  writer.open(1, 33, greedy(), 48);
  writer.prefill(1, 0, good, true);
  EXPECT_EQ(writer.run()[0].tokens, outputs[0].tokens);
}

TEST_F(cpu_executor_test, a_fault_in_any_step_leaves_the_plan_in_flight_and_the_other_sequences_alone) {
  constexpr token_id poison = 123; // whoever reads it has no numbers any more
  std::vector<float> table;
  const auto executor = make_cpu_executor(poisoned(poison, table), test::small_options());
  plan_writer writer(*executor);
  sampling_params drawn = greedy(); // draws the poison at once, reads it in its first decode
  drawn.logit_bias = {{poison, 1e6F}};
  sampling_params penalised = greedy();
  penalised.repetition_penalty = 1.5F;
  tokens good(8, 5), bad(8, 5);
  bad[3] = poison;
  const tokens last_good(9, 5), last_bad = {5, poison, 5, 5, 5, 5, 5, 5, 5}; // with the target of the last row
  writer.open(0, 8, greedy(), 48);
  writer.open(1, 8, drawn, 48);
  writer.open(2, 32, greedy(), 48);  // its second chunk is bad
  writer.open(3, 32, penalised, 48); // its first one
  writer.prefill(0, 0, good, true);
  writer.prefill(1, 0, good, true);
  writer.prefill(2, 0, last_good, false, 1, true);
  writer.prefill(3, 0, last_bad, false, 1, true);
  std::vector<slot_output> outputs = writer.run();
  EXPECT_EQ(outputs[1].tokens, tokens{poison});
  EXPECT_TRUE(outputs[3].numeric_fault);
  EXPECT_FALSE(outputs[0].numeric_fault || outputs[1].numeric_fault || outputs[2].numeric_fault);
  writer.decode(0, 8);
  writer.decode(1, 8);
  writer.prefill(2, 8, last_bad, false, 1, true);
  writer.prefill(3, 8, last_good, false, 1, true); // in flight when the fault came
  outputs = writer.run();
  EXPECT_FALSE(outputs[0].numeric_fault);
  EXPECT_TRUE(outputs[1].numeric_fault && outputs[2].numeric_fault && outputs[3].numeric_fault);
  writer.decode(0, 9);
  writer.decode(1, 9);
  writer.prefill(2, 16, last_good, false, 1, true);
  outputs = writer.run();
  EXPECT_EQ(outputs[0].tokens.size(), 1U);
  EXPECT_TRUE(outputs[1].numeric_fault && outputs[2].numeric_fault);
}

TEST_F(cpu_executor_test, the_checkpoint_is_not_read_after_loading) {
  std::vector<float> table;
  const auto weights = poisoned(199, table);
  const auto executor = make_cpu_executor(weights, test::small_options());
  std::fill(table.begin(), table.end(), std::numeric_limits<float>::quiet_NaN()); // as a file that is overwritten in place
  plan_writer writer(*executor);
  EXPECT_EQ(generate(writer, 0, prompts_[1].tokens, greedy(), 3), part_of(prompts_[1].greedy, 0, 3));
}

TEST_F(cpu_executor_test, padding_rows_of_the_head_are_never_drawn_nor_listed) {
  cpu_executor_options options = test::small_options();
  options.tokenizer_vocab_size = 150;
  const auto executor = make_cpu_executor(weights_, options);
  EXPECT_EQ(executor->info().vocab_size, 150);
  plan_writer writer(*executor);
  sampling_params sampling;
  sampling.temperature = 50.0F; // nearly even
  sampling.top_logprobs = 20;
  sampling.logit_bias = {{190, 100.0F}};
  writer.open(0, 5, sampling, 120);
  writer.prefill(0, 0, {1, 2, 3, 4, 5}, true);
  for (std::int32_t i = 0; i < 100; ++i) {
    const slot_output output = writer.run()[0];
    ASSERT_LT(output.tokens.at(0), 150);
    for (const scored_token& best : output.scores.at(0).top) ASSERT_LT(best.token, 150);
    writer.decode(0, 5 + i);
  }
}

TEST_F(cpu_executor_test, options_that_cannot_work_are_refused_with_the_numbers) {
  const auto refused = [&](auto change, const std::vector<std::string>& words) {
    cpu_executor_options options = test::small_options();
    options.num_blocks.reset();
    change(options);
    try {
      make_cpu_executor(weights_, options);
      ADD_FAILURE() << "accepted; expected " << words[0];
    } catch (const load_error& e) {
      for (const std::string& word : words) EXPECT_NE(std::string(e.what()).find(word), std::string::npos) << e.what();
    }
  };
  // 2 layers x 2 KV heads x 16 x 2 (K, V) x 4 bytes = 512 bytes a token
  EXPECT_EQ(kv_bytes_per_token(weights_->config, dtype::f32), 512U);
  refused([](auto& o) { o.kv_bytes = 4095; }, {"4095", "4096"});
  refused([](auto& o) { o.num_blocks = 0; }, {"num_blocks", "0"});
  refused([](auto& o) { o.max_model_len = 257; }, {"257", "256"});
  refused([](auto& o) { o.max_model_len = -1; }, {"max_model_len", "-1"});
  refused([](auto& o) { o.block_size = 0; }, {"block_size"});
  refused([](auto& o) { o.max_num_seqs = 0; }, {"max_num_seqs"});
  refused([](auto& o) { o.max_batched_tokens = 0; }, {"max_batched_tokens"});
  refused([](auto& o) { o.threads = -2; }, {"threads"});
  refused([](auto& o) { o.tokenizer_vocab_size = 0; }, {"tokenizer_vocab_size"});
  refused([](auto& o) { o.kv_type = dtype::q8_0; }, {"Q8_0"});
  refused(
      [](auto& o) {
        o.num_blocks = std::numeric_limits<std::int32_t>::max();
        o.block_size = 1 << 30;
      },
      {"memory"});
  cpu_executor_options exact = test::small_options();
  exact.num_blocks.reset();
  exact.kv_bytes = 3 * 4096 + 100;
  EXPECT_EQ(make_cpu_executor(weights_, exact)->info().num_blocks, 3);
}

} // namespace
} // namespace troupe
