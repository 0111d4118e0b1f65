// The step protocol on the GPU: what core/step.hpp promises of any device.
#include "core/error.hpp"
#include "device/cuda/resources.hpp"
#include "tests/models/gpu/gpu_model_testing.hpp"

namespace troupe {
namespace {

using test::greedy;
using test::part_of;
using test::plan_writer;
using test::tokens;

class gpu_executor_test : public test::gpu_model_test {
 protected:
  void SetUp() override {
    test::gpu_model_test::SetUp();
    if (IsSkipped()) return;
    weights_ = std::make_shared<const model_weights>(make_dummy_weights(test::quick_config(64), dtype::f32, 3));
  }
  std::unique_ptr<step_executor> make() { return make_gpu_executor(*weights_, test::small_gpu_options()); }
  static tokens random_tokens(std::size_t count, std::uint32_t seed) {
    std::mt19937 random(seed);
    tokens text;
    for (std::size_t i = 0; i < count; ++i) text.push_back(static_cast<token_id>(random() % 1003));
    return text;
  }
  static sampling_params forced(token_id token, float by = 1e4F) {
    sampling_params params = greedy();
    params.logit_bias = {{token, by}};
    return params;
  }

  // Draws one of a few tokens, each with so much weight that no rounding decides.
  static sampling_params spread() {
    sampling_params params;
    for (token_id token = 100; token < 1000; token += 100) params.logit_bias.push_back({token, 40});
    return params;
  }

  std::shared_ptr<const model_weights> weights_;
};

TEST_F(gpu_executor_test, plans_that_leave_before_results_are_known_give_the_same_tokens) {
  const tokens prompt = random_tokens(40, 1);
  sampling_params params;
  params.seed = 11;
  params.frequency_penalty = 0.4F;
  const auto waiting = make();
  plan_writer one(*waiting);
  const tokens right = test::generate(one, 2, prompt, params, 24);
  ASSERT_EQ(right.size(), 24U);
  const auto executor = make();
  plan_writer writer(*executor);
  writer.open(2, 40, params, 64);
  writer.prefill(2, 0, prompt, true);
  std::vector<std::future<step_outcome>> outcomes;
  outcomes.push_back(writer.start());
  for (std::int32_t i = 0; i < 23; ++i) {
    writer.decode(2, 40 + i);
    outcomes.push_back(writer.start());
  }
  tokens drawn;
  step_number step = 0;
  for (auto& outcome : outcomes) {
    const step_outcome o = outcome.get();
    const auto& result = std::get<step_result>(o);
    EXPECT_EQ(result.step, ++step);
    drawn.push_back(result.outputs.at(0).tokens.at(0));
  }
  EXPECT_EQ(drawn, right);
}

TEST_F(gpu_executor_test, a_step_makes_no_stream_event_graph_or_allocation) {
  const auto executor = make();
  plan_writer writer(*executor);
  test::generate(writer, 0, random_tokens(20, 2), greedy(), 5);
  const cuda::resource_counts before = cuda::resources_made();
  sampling_params params;
  params.top_logprobs = 3;
  params.repetition_penalty = 1.2F;
  test::generate(writer, 1, random_tokens(100, 3), params, 20);
  EXPECT_EQ(cuda::resources_made(), before);
}

TEST_F(gpu_executor_test, draws_do_not_depend_on_slot_blocks_or_the_order_of_rows) {
  sampling_params params;
  params.temperature = 1.3F;
  params.top_p = 0.9F;
  params.presence_penalty = 0.3F;
  const auto all = [&](std::uint32_t seed, bool turned) {
    const auto executor = make();
    plan_writer writer(*executor, seed);
    std::vector<tokens> drawn(8);
    std::vector<std::int32_t> order(8);
    for (std::int32_t i = 0; i < 8; ++i) order[static_cast<std::size_t>(turned ? 7 - i : i)] = i;
    const auto slot_of = [&](std::int32_t sequence) { return turned ? (sequence + 3) % 8 : sequence; };
    for (const std::int32_t i : order) {
      params.seed = static_cast<std::uint64_t>(i) + 50;
      writer.open(slot_of(i), 12, params, 40);
      writer.prefill(slot_of(i), 0, random_tokens(12, static_cast<std::uint32_t>(i)), true);
    }
    for (std::int32_t step = 0; step < 20; ++step) {
      for (const slot_output& o : writer.run()) {
        for (std::int32_t i = 0; i < 8; ++i) {
          if (slot_of(i) == o.slot) drawn[static_cast<std::size_t>(i)].push_back(o.tokens.at(0));
        }
      }
      for (const std::int32_t i : order) writer.decode(slot_of(i), 12 + step);
    }
    return drawn;
  };
  const auto right = all(1, false);
  EXPECT_EQ(all(1, false), right) << "two equal runs";
  EXPECT_EQ(all(99, true), right);
}

// Seven rows take the graph of eight; the eighth row's place belonged to a sequence that is still there.
TEST_F(gpu_executor_test, rows_that_fill_a_graph_touch_no_sequence) {
  const auto best_of_last = [&](bool first_leaves) {
    const auto executor = make();
    plan_writer writer(*executor);
    for (slot_id slot = 0; slot < 8; ++slot) {
      sampling_params params = forced(500 + slot);
      params.top_logprobs = 1;
      writer.open(slot, 5, params, 32);
      writer.prefill(slot, 0, random_tokens(5, 100 + static_cast<std::uint32_t>(slot)), true);
    }
    std::vector<float> best;
    for (std::int32_t step = 0; step < 12; ++step) {
      best.push_back(writer.run().back().scores.at(0).top.at(0).logprob);
      const bool left = first_leaves && step >= 2;
      if (first_leaves && step == 2) writer.close(0);
      for (slot_id slot = left ? 1 : 0; slot < 8; ++slot) writer.decode(slot, 5 + step);
    }
    return best;
  };
  const std::vector<float> right = best_of_last(false), got = best_of_last(true);
  for (std::size_t i = 0; i < right.size(); ++i) EXPECT_NEAR(got[i], right[i], 5e-3F) << "step " << i;
}

TEST_F(gpu_executor_test, sequences_have_the_same_logprobs_alone_and_beside_many) {
  constexpr slot_id many = 48; // beyond what the fused chain takes
  constexpr std::int32_t steps = 6;
  gpu_executor_options options = test::small_gpu_options();
  options.max_num_seqs = many;
  options.num_blocks = 2 * many;
  const auto together = make_gpu_executor(*weights_, options), alone = make();
  plan_writer writer(*together), single(*alone);
  const auto prompt_of = [](slot_id slot) { return random_tokens(5, 100 + static_cast<std::uint32_t>(slot)); };
  const auto params_of = [](slot_id slot) {
    sampling_params params = forced(500 + slot); // the same text either way
    params.top_logprobs = 1;
    return params;
  };
  for (slot_id slot = 0; slot < many; ++slot) {
    writer.open(slot, 5, params_of(slot), 32);
    writer.prefill(slot, 0, prompt_of(slot), true);
  }
  std::vector<std::vector<slot_output>> outputs;
  for (std::int32_t step = 0; step < steps; ++step) {
    outputs.push_back(writer.run());
    for (slot_id slot = 0; slot < many; ++slot) writer.decode(slot, 5 + step);
  }
  for (slot_id slot = 0; slot < many; ++slot) {
    single.open(0, 5, params_of(slot), 32);
    single.prefill(0, 0, prompt_of(slot), true);
    for (std::int32_t step = 0; step < steps; ++step) {
      const slot_output right = single.run()[0];
      const slot_output& got = outputs[static_cast<std::size_t>(step)][static_cast<std::size_t>(slot)];
      ASSERT_EQ(got.slot, slot);
      ASSERT_EQ(got.tokens, tokens{500 + slot});
      ASSERT_NEAR(got.scores.at(0).chosen.logprob, right.scores.at(0).chosen.logprob, 0.05) << "slot " << slot << ", step " << step;
      if (step + 1 < steps) single.decode(0, 5 + step);
    }
    single.close(0);
  }
}

TEST_F(gpu_executor_test, a_sequence_may_start_on_rows_that_another_computed_and_take_copies_of_blocks) {
  const auto executor = make();
  plan_writer writer(*executor);
  const tokens prompt = random_tokens(40, 5); // blocks of 16: two full ones, and 8 tokens
  writer.open(0, 40, greedy(), 64);
  writer.prefill(0, 0, prompt, true);
  const std::vector<block_id> mine = writer.plan.grants[0].blocks;
  const token_id first = writer.run()[0].tokens.at(0);
  writer.decode(0, 40);
  const token_id second = writer.run()[0].tokens.at(0);
  writer.open(1, 40, greedy(), 64);
  std::vector<block_id>& theirs = writer.plan.grants[0].blocks;
  writer.plan.copies = {{mine[2], theirs[3]}, {theirs[3], theirs[2]}}; // the second depends on the first
  std::copy(mine.begin(), mine.begin() + 2, theirs.begin());
  writer.prefill(1, 39, {prompt[39]}, true);
  writer.decode(0, 41);
  const auto outputs = writer.run();
  EXPECT_EQ(outputs[0].tokens.at(0), first);
  writer.decode(1, 40);
  EXPECT_EQ(writer.run()[0].tokens.at(0), second);
}

TEST_F(gpu_executor_test, verified_drafts_count_up_to_the_first_wrong_one) {
  const tokens prompt = random_tokens(33, 6);
  for (const bool penalised : {false, true}) {
    sampling_params params = spread();
    params.seed = 4;
    params.top_logprobs = 2;
    if (penalised) params.frequency_penalty = 0.7F;
    const auto plain = make();
    plan_writer single(*plain);
    const tokens right = test::generate(single, 0, prompt, params, 10);
    for (std::size_t good = 0; good <= 4; ++good) {
      const auto executor = make();
      plan_writer writer(*executor);
      writer.open(0, 33, params, 64);
      writer.prefill(0, 0, prompt, true);
      EXPECT_EQ(writer.run()[0].tokens.at(0), right[0]);
      tokens drafts = part_of(right, 1, 5);
      if (good < 4) drafts[good] = drafts[good] == 100 ? 200 : 100;
      writer.verify(0, 33, drafts);
      const slot_output verified = writer.run()[0];
      EXPECT_EQ(verified.tokens, part_of(right, 1, 2 + good)) << good << " good drafts";
      EXPECT_EQ(verified.scores.size(), verified.tokens.size());
      writer.decode(0, static_cast<std::int32_t>(33 + verified.tokens.size()));
      EXPECT_EQ(writer.run()[0].tokens, part_of(right, 2 + good, 3 + good)) << "rejected drafts left something behind";
    }
  }
}

TEST_F(gpu_executor_test, a_draft_model_beside_the_target_proposes_what_the_target_draws_when_both_are_the_same) {
  gpu_executor_options options = test::small_gpu_options();
  options.num_blocks.reset();
  options.kv_bytes = std::size_t{8} << 20;
  const auto executor = make_drafting_gpu_executor(*weights_, *weights_, options);
  EXPECT_GE(executor->info().max_proposals, 3);
  const sampling_params params = spread();
  const tokens prompt = random_tokens(33, 9);
  const auto plain = make();
  plan_writer single(*plain);
  const tokens right = test::generate(single, 0, prompt, params, 8);
  plan_writer writer(*executor);
  writer.open(0, 33, params, 64);
  writer.prefill(0, 0, prompt, true);
  writer.plan.items.back().propose = 3;
  slot_output output = writer.run()[0];
  EXPECT_EQ(output.tokens, part_of(right, 0, 1));
  EXPECT_EQ(output.proposals, part_of(right, 1, 4));
  writer.verify(0, 33, output.proposals);
  writer.plan.items.back().propose = 2;
  output = writer.run()[0];
  EXPECT_EQ(output.tokens, part_of(right, 1, 5));
  EXPECT_EQ(output.proposals, part_of(right, 5, 7));
}

TEST_F(gpu_executor_test, biases_suppression_and_penalties_are_applied) {
  const auto executor = make();
  plan_writer writer(*executor);
  sampling_params params = forced(17);
  params.logit_bias.push_back({18, 9e3F});
  params.min_tokens = 2;
  params.suppressed = {17};
  EXPECT_EQ(test::generate(writer, 0, random_tokens(9, 8), params, 4), (tokens{18, 18, 17, 17}));
  params = greedy();
  params.frequency_penalty = 2;
  params.repetition_penalty = 1.1F;
  params.logit_bias = {{40, 100}, {41, 97}, {42, 95}};
  const auto cpu = make_cpu_executor(weights_, test::small_options());
  plan_writer reference(*cpu);
  EXPECT_EQ(test::generate(writer, 0, random_tokens(9, 8), params, 12), test::generate(reference, 0, random_tokens(9, 8), params, 12));
  EXPECT_EQ(test::generate(writer, 0, random_tokens(9, 8), forced(50), 2), (tokens{50, 50})) << "the slot's old biases are gone";
}

TEST_F(gpu_executor_test, a_slot_reopened_in_flight_gets_nothing_of_its_predecessor) {
  const auto executor = make();
  plan_writer writer(*executor);
  std::vector<std::future<step_outcome>> outcomes;
  writer.open(0, 20, forced(7), 40);
  writer.prefill(0, 0, random_tokens(20, 1), true);
  outcomes.push_back(writer.start());
  writer.verify(0, 20, {7, 7, 9});
  outcomes.push_back(writer.start());
  writer.close(0);
  writer.open(0, 10, forced(8), 40);
  writer.prefill(0, 0, random_tokens(10, 2), true);
  outcomes.push_back(writer.start());
  writer.decode(0, 10);
  outcomes.push_back(writer.start());
  const std::vector<tokens> right = {{7}, {7, 7, 7}, {8}, {8}};
  for (std::size_t i = 0; i < 4; ++i) {
    const step_outcome o = outcomes[i].get();
    ASSERT_TRUE(std::holds_alternative<step_result>(o)) << std::get<step_failure>(o).reason;
    EXPECT_EQ(std::get<step_result>(o).outputs.at(0).tokens, right[i]);
  }
  writer.decode(0, 11); // news of the old sequence's verified position must not reach this one
  EXPECT_EQ(writer.run()[0].tokens, tokens{8});
}

TEST_F(gpu_executor_test, a_broken_plan_fails_its_epoch_and_the_next_one_works) {
  const auto executor = make();
  plan_writer writer(*executor);
  writer.open(0, 5, forced(7), 20);
  writer.prefill(0, 0, {1, 2, 3, 4, 5}, true);
  writer.run();
  writer.decode(0, 9);
  const step_outcome broken = writer.submit();
  ASSERT_TRUE(std::holds_alternative<step_failure>(broken));
  EXPECT_NE(std::get<step_failure>(broken).reason.find("position 9"), std::string::npos);
  writer.decode(0, 5);
  EXPECT_TRUE(std::holds_alternative<step_failure>(writer.submit()));
  writer.plan.epoch = 2;
  writer.plan.step = 0;
  writer.open(0, 5, forced(8), 20);
  writer.prefill(0, 0, {1, 2, 3, 4, 5}, true);
  EXPECT_EQ(writer.run()[0].tokens, tokens{8});
}

TEST_F(gpu_executor_test, logits_that_are_no_numbers_fail_their_sequence_alone) {
  constexpr token_id poison = 123;
  auto damaged = std::make_shared<model_weights>(*weights_);
  const auto width = static_cast<std::size_t>(damaged->config.hidden_size);
  std::vector<float> table(static_cast<std::size_t>(damaged->config.vocab_size) * width);
  std::copy_n(reinterpret_cast<const float*>(weights_->embedding.data), table.size(), table.begin());
  std::fill_n(table.begin() + static_cast<std::ptrdiff_t>(poison * width), width, std::numeric_limits<float>::quiet_NaN());
  damaged->embedding.data = reinterpret_cast<const std::byte*>(table.data());
  gpu_executor_options options = test::small_gpu_options();
  options.num_blocks = 6; // the next sequence gets the blocks of the faulted ones
  const auto executor = make_gpu_executor(*damaged, options);
  const auto healthy = make();
  plan_writer writer(*executor), other(*healthy);
  tokens good = random_tokens(20, 4), bad = good;
  std::replace(good.begin(), good.end(), poison, token_id{124});
  bad[11] = poison;
  const tokens right = test::generate(other, 0, good, greedy(), 6);
  writer.open(0, 20, greedy(), 32);
  writer.open(1, 20, greedy(), 32);
  writer.open(2, 20, forced(poison), 32); // draws it, and reads it in its first decode
  writer.prefill(0, 0, good, true);
  writer.prefill(1, 0, bad, true, 1);
  writer.prefill(2, 0, good, true);
  auto outputs = writer.run();
  EXPECT_EQ(outputs[0].tokens.at(0), right[0]);
  EXPECT_TRUE(outputs[1].numeric_fault && outputs[1].tokens.empty() && outputs[1].prompt_scores.empty());
  EXPECT_EQ(outputs[2].tokens, tokens{poison});
  for (std::int32_t step = 0; step < 3; ++step) { // the first of these was planned before any fault was known
    for (slot_id slot = 0; slot < 3; ++slot) writer.decode(slot, 20 + step);
    outputs = writer.run();
    EXPECT_EQ(outputs[0].tokens.at(0), right[static_cast<std::size_t>(step) + 1]);
    for (const std::size_t slot : {1U, 2U}) EXPECT_TRUE(outputs[slot].numeric_fault && outputs[slot].tokens.empty()) << step;
  }
  writer.close(1);
  writer.close(2);
  writer.run();
  EXPECT_EQ(test::generate(writer, 1, good, greedy(), 6), right) << "what the faulted sequences left in their blocks was read";
}

TEST_F(gpu_executor_test, what_cannot_work_is_refused_with_the_numbers) {
  const auto refused = [&](auto change, const std::vector<std::string>& words) {
    gpu_executor_options options = test::small_gpu_options();
    options.num_blocks.reset();
    change(options);
    const cuda::resource_counts before = cuda::resources_made();
    try {
      make_gpu_executor(*weights_, options);
      ADD_FAILURE() << "accepted; expected " << words[0];
    } catch (const load_error& e) {
      for (const std::string& word : words) EXPECT_NE(std::string(e.what()).find(word), std::string::npos) << e.what();
    }
    EXPECT_EQ(cuda::resources_made(), before) << "something was taken before";
  };
  refused([](auto& o) { o.kv_bytes = std::size_t{1} << 50; },
          {"does not fit", "--kv-cache-memory is 1048576.00 GiB", "weights", "are unused"});
  refused([](auto& o) { o.kv_bytes = 100; }, {"one block", "100 bytes"});
  refused([](auto& o) { o.memory_utilization = 0.0001; }, {"leaves 0 bytes", "weights"});
  refused([](auto& o) { o.block_size = 24; }, {"block_size", "24", "16"});
  refused([](auto& o) { o.num_blocks = 0; }, {"num_blocks", "0"});
  refused([](auto& o) { o.max_model_len = 513; }, {"513", "512"});
  refused([](auto& o) { o.device = 99; }, {"GPU 99"});
  refused([](auto& o) { o.type = dtype::f32; }, {"bf16 or f16"});
  refused([](auto& o) { o.memory_utilization = 1.5; }, {"1.5"});
}

} // namespace
} // namespace troupe
