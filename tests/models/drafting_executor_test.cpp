#include "models/drafting_executor.hpp"

#include "core/error.hpp"
#include "tests/models/executor_testing.hpp"

namespace troupe {
namespace {

using test::greedy;
using test::part_of;
using test::plan_writer;
using test::tokens;

class drafting_executor_test : public ::testing::Test {
 protected:
  static constexpr const char* kModel = "llama3-gqa";

  // The target as its own draft model: every proposal is right.
  std::unique_ptr<step_executor> twice(const cpu_executor_options& options = test::small_options()) {
    return make_drafting_cpu_executor(weights_, weights_, options);
  }
  tokens plainly(const sampling_params& sampling, std::size_t count) {
    const auto executor = make_cpu_executor(weights_, test::small_options());
    plan_writer writer(*executor);
    return generate(writer, 0, prompt_, sampling, count);
  }
  slot_output run_proposing(plan_writer& writer, std::int32_t count) {
    writer.plan.items.back().propose = count;
    return writer.run().back();
  }

  std::shared_ptr<const model_weights> weights_ = test::tiny_weights(kModel);
  tokens prompt_ = test::expected_prompts(kModel)[2].tokens; // 33
};

TEST_F(drafting_executor_test, proposes_what_the_target_will_draw_whatever_was_accepted_before) {
  sampling_params warm;
  warm.seed = 5;
  warm.temperature = 0.8F;
  for (const sampling_params& sampling : {greedy(), warm}) {
    const tokens right = plainly(sampling, 40);
    const auto executor = twice();
    plan_writer writer(*executor);
    writer.open(0, 33, sampling, 80);
    writer.prefill(0, 0, prompt_, true);
    slot_output out = run_proposing(writer, 5);
    tokens drawn = out.tokens;
    for (std::size_t round = 0; drawn.size() < 24; ++round) {
      EXPECT_EQ(out.proposals, part_of(right, drawn.size(), drawn.size() + out.proposals.size())) << "round " << round;
      const auto position = 32 + static_cast<std::int32_t>(drawn.size());
      tokens drafts = part_of(out.proposals, 0, std::min(round % 6, out.proposals.size())); // not all need be verified
      if (round % 3 == 1 && !drafts.empty()) drafts.back() = (drafts.back() + 1) % 200;
      writer.verify(0, position, drafts);
      if (drafts.empty()) writer.plan.items.back().kind = work_kind::decode;
      out = run_proposing(writer, static_cast<std::int32_t>(round % 4)); // sometimes none are asked for
      drawn.insert(drawn.end(), out.tokens.begin(), out.tokens.end());
    }
    EXPECT_EQ(drawn, part_of(right, 0, drawn.size()));
  }
}

// Chunks, a budget that is smaller than what is due, and sequences side by side.
TEST_F(drafting_executor_test, catches_up_in_steps_of_its_budget) {
  cpu_executor_options options = test::small_options();
  options.max_batched_tokens = 12;
  const tokens right = plainly(greedy(), 20);
  const auto executor = twice(options);
  plan_writer writer(*executor);
  for (const slot_id slot : {0, 1}) writer.open(slot, 33, greedy(), 64);
  for (std::int32_t first = 0; first < 33; first += 6) {
    const auto end = static_cast<std::size_t>(std::min(first + 6, 33));
    for (const slot_id slot : {0, 1}) {
      writer.prefill(slot, first, part_of(prompt_, static_cast<std::size_t>(first), end), end == 33);
    }
    if (end < 33) writer.run();
  }
  writer.run();
  for (std::int32_t position = 33; position < 45; ++position) { // nothing is asked for: rows wait
    for (const slot_id slot : {0, 1}) writer.decode(slot, position);
    if (position < 44) writer.run();
  }
  for (work_item& item : writer.plan.items) item.propose = 4;
  for (const slot_output& out : writer.run()) EXPECT_EQ(out.proposals, part_of(right, 13, 17));
}

TEST_F(drafting_executor_test, a_new_epoch_and_a_closed_slot_start_afresh) {
  const tokens right = plainly(greedy(), 12);
  const auto executor = twice();
  for (epoch_number epoch = 1; epoch <= 3; ++epoch) {
    plan_writer writer(*executor, static_cast<std::uint32_t>(epoch));
    writer.plan.epoch = epoch;
    for (int again = 0; again < 2; ++again) {
      writer.open(3, 33, greedy(), 64);
      writer.prefill(3, 0, prompt_, true);
      EXPECT_EQ(run_proposing(writer, 6).proposals, part_of(right, 1, 7));
      writer.decode(3, 33);
      writer.run();
      writer.close(3);
    }
  }
}

// Its counts cannot be undone, so the draft model draws without penalties: worse guesses, the same tokens.
TEST_F(drafting_executor_test, penalties_change_guesses_but_no_token) {
  sampling_params sampling = greedy();
  sampling.repetition_penalty = 1.4F;
  const tokens right = plainly(sampling, 12);
  const auto executor = twice();
  plan_writer writer(*executor);
  writer.open(0, 33, sampling, 64);
  writer.prefill(0, 0, prompt_, true);
  slot_output out = run_proposing(writer, 3);
  tokens drawn = out.tokens;
  while (drawn.size() < 8) {
    EXPECT_EQ(out.proposals.size(), 3U);
    writer.verify(0, 32 + static_cast<std::int32_t>(drawn.size()), out.proposals);
    out = run_proposing(writer, 3);
    drawn.insert(drawn.end(), out.tokens.begin(), out.tokens.end());
  }
  EXPECT_EQ(drawn, part_of(right, 0, drawn.size()));
}

TEST_F(drafting_executor_test, a_shorter_context_ends_the_proposals) {
  cpu_executor_options options = test::small_options();
  auto target = make_cpu_executor(weights_, options);
  options.max_model_len = 36;
  const auto executor = make_drafting_executor(std::move(target), make_cpu_executor(weights_, options));
  plan_writer writer(*executor);
  writer.open(0, 33, greedy(), 64);
  writer.prefill(0, 0, prompt_, true);
  EXPECT_EQ(run_proposing(writer, 3).proposals.size(), 3U); // rows 33, 34 and 35
  writer.decode(0, 33);
  EXPECT_EQ(run_proposing(writer, 3).proposals.size(), 0U);
  for (std::int32_t position = 34; position < 50; ++position) {
    writer.decode(0, position);
    EXPECT_EQ(run_proposing(writer, 1).tokens.size(), 1U);
  }
}

TEST_F(drafting_executor_test, says_what_it_can_and_divides_the_memory) {
  cpu_executor_options options = test::small_options();
  options.num_blocks.reset();
  const std::size_t block = kv_bytes_per_token(weights_->config, dtype::f32) * 8;
  options.kv_type = dtype::f32;
  options.kv_bytes = block * 21;
  const executor_info info = twice(options)->info();
  EXPECT_EQ(info.num_blocks, 10);
  EXPECT_EQ(info.max_proposals, 64);
  EXPECT_EQ(info.max_verify_tokens, options.max_batched_tokens);
  options.kv_bytes = block;
  EXPECT_THROW(twice(options), load_error);
}

TEST_F(drafting_executor_test, refuses_models_that_do_not_go_together) {
  cpu_executor_options options = test::small_options(), other = options;
  other.tokenizer_vocab_size = 199;
  EXPECT_THROW(make_drafting_executor(make_cpu_executor(weights_, options), make_cpu_executor(weights_, other)), std::invalid_argument);
  other = options;
  other.num_blocks = 127;
  EXPECT_THROW(make_drafting_executor(make_cpu_executor(weights_, options), make_cpu_executor(weights_, other)), std::invalid_argument);
}

} // namespace
} // namespace troupe
