// The same sequence gives the same tokens, however it is cut, placed, accompanied or computed again.
#include "tests/models/executor_testing.hpp"

namespace troupe {
namespace {

using test::generate;
using test::greedy;
using test::part_of;
using test::plan_writer;
using test::tokens;

class every_family : public ::testing::TestWithParam<const char*> {};

TEST_P(every_family, greedy_tokens_equal_transformers_also_over_reused_blocks) {
  cpu_executor_options options = test::small_options();
  options.num_blocks = 14; // the longest prompt needs all of them: every block is used again
  const auto executor = make_cpu_executor(test::tiny_weights(GetParam()), options);
  plan_writer writer(*executor);
  std::vector<test::expected_prompt> prompts = test::expected_prompts(GetParam());
  std::reverse(prompts.begin(), prompts.end());
  for (const test::expected_prompt& prompt : prompts) EXPECT_EQ(generate(writer, 3, prompt.tokens, greedy(), 16), prompt.greedy);
}

TEST_P(every_family, seeded_draws_do_not_depend_on_batch_slot_blocks_or_chunks) {
  const auto weights = test::tiny_weights(GetParam());
  const std::vector<test::expected_prompt> prompts = test::expected_prompts(GetParam());
  sampling_params sampling;
  sampling.temperature = 1.2F;
  sampling.top_p = 0.95F;
  sampling.repetition_penalty = 1.1F;
  sampling.frequency_penalty = 0.2F;
  const auto alone = make_cpu_executor(weights, test::small_options());
  plan_writer single(*alone);
  std::vector<tokens> right;
  std::vector<tokens> input;
  for (int i = 0; i < 8; ++i) {
    sampling.seed = static_cast<std::uint64_t>(1000 + i);
    input.push_back(part_of(prompts[3].tokens, static_cast<std::size_t>(i), static_cast<std::size_t>(20 + 9 * i)));
    right.push_back(generate(single, 0, input.back(), sampling, 12));
    ASSERT_EQ(right.back().size(), 12U);
  }
  const auto together = make_cpu_executor(weights, test::small_options());
  plan_writer batch(*together, 77);
  std::vector<tokens> drawn(8);
  std::vector<std::size_t> done(8);
  std::mt19937 random(std::random_device{}());
  for (int i = 0; i < 8; ++i) {
    sampling.seed = static_cast<std::uint64_t>(1000 + i);
    batch.open(7 - i, static_cast<std::int32_t>(input[static_cast<std::size_t>(i)].size()), sampling, 120);
  }
  for (bool busy = true; busy;) {
    busy = false;
    std::vector<std::size_t> order(8);
    for (std::size_t i = 0; i < 8; ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random);
    for (const std::size_t i : order) {
      const slot_id slot = 7 - static_cast<slot_id>(i);
      if (done[i] < input[i].size()) {
        const std::size_t end = std::min(input[i].size(), done[i] + std::uniform_int_distribution<std::size_t>(1, 25)(random));
        batch.prefill(slot, static_cast<std::int32_t>(done[i]), part_of(input[i], done[i], end), end == input[i].size());
        done[i] = end;
      } else if (drawn[i].size() < 12) {
        batch.decode(slot, static_cast<std::int32_t>(input[i].size() + drawn[i].size()) - 1);
      }
    }
    if (batch.plan.items.empty()) break;
    busy = true;
    for (const slot_output& output : batch.run()) {
      tokens& mine = drawn[static_cast<std::size_t>(7 - output.slot)];
      mine.insert(mine.end(), output.tokens.begin(), output.tokens.end());
    }
  }
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(drawn[i], right[i]) << "sequence " << i;
}

TEST_P(every_family, a_refill_after_preemption_or_a_lost_device_continues_with_the_same_tokens) {
  const auto executor = make_cpu_executor(test::tiny_weights(GetParam()), test::small_options());
  const tokens prompt = test::expected_prompts(GetParam())[2].tokens;
  sampling_params sampling;
  sampling.seed = 5;
  sampling.presence_penalty = 0.5F;
  sampling.min_tokens = 9;
  sampling.suppressed = {2, 3, 5};
  plan_writer writer(*executor);
  const tokens whole = generate(writer, 1, prompt, sampling, 16);
  ASSERT_EQ(whole.size(), 16U);
  for (const std::size_t kept : {1U, 7U, 15U}) {
    if (kept == 7) { // as after a lost device: a new epoch, slots open at that moment are gone
      writer.open(6, 1, sampling, 1);
      writer.prefill(6, 0, {1}, true);
      writer.run();
      writer.plan.epoch = 2;
      writer.plan.step = 0;
    }
    const auto length = static_cast<std::int32_t>(prompt.size());
    writer.open(6, length, sampling, length + 16);
    tokens known = prompt;
    known.insert(known.end(), whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(kept));
    writer.prefill(6, 0, part_of(known, 0, 10), false);
    EXPECT_TRUE(writer.run()[0].tokens.empty());
    writer.prefill(6, 10, part_of(known, 10, known.size()), true);
    tokens drawn = part_of(whole, 0, kept);
    drawn.push_back(writer.run()[0].tokens.at(0));
    while (drawn.size() < 16) {
      writer.decode(6, length + static_cast<std::int32_t>(drawn.size()) - 1);
      drawn.push_back(writer.run()[0].tokens.at(0));
    }
    EXPECT_EQ(drawn, whole) << "refilled with " << kept << " outputs";
    writer.close(6);
  }
}

INSTANTIATE_TEST_SUITE_P(executor_replay, every_family, ::testing::ValuesIn(test::tiny_models), [](const auto& tested) {
  std::string name = tested.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

} // namespace
} // namespace troupe
