// Plans through groups of ranks: what is drawn, who says it, and what a failure does to the others.
#include "models/group_executor.hpp"

#include <gmock/gmock.h>

#include <limits>

#include "core/error.hpp"
#include "device/cpu/host_limits.hpp"
#include "models/shard.hpp"
#include "models/widened_weights.hpp"
#include "tests/models/group_testing.hpp"

namespace troupe {
namespace {

using test::generate;
using test::greedy;
using test::group_shape;
using test::part_of;
using test::plan_writer;
using test::tokens;
using ::testing::HasSubstr;

constexpr group_shape kShapes[] = {{2, 1}, {4, 1}, {1, 2}, {2, 2}, {4, 2}};

cpu_executor_options options_of_each() {
  cpu_executor_options options = test::small_options();
  options.threads = 1;
  return options;
}

std::unique_ptr<step_executor> make(const std::shared_ptr<const model_weights>& weights, group_shape shape) {
  return make_cpu_group_executor(weights, options_of_each(), shape.tp_size, shape.stages, test::group_deadline);
}

std::string reason_of(const step_outcome& outcome) {
  const auto* failure = std::get_if<step_failure>(&outcome);
  return failure != nullptr ? failure->reason : std::string();
}

class group_of_family : public ::testing::TestWithParam<const char*> {};

TEST_P(group_of_family, greedy_tokens_equal_transformers) {
  const auto weights = test::tiny_weights(GetParam());
  for (const group_shape& shape : kShapes) {
    const auto executor = make(weights, shape);
    plan_writer writer(*executor);
    for (const test::expected_prompt& prompt : test::expected_prompts(GetParam())) {
      EXPECT_EQ(generate(writer, 3, prompt.tokens, greedy(), 16), prompt.greedy) << shape;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(families, group_of_family, ::testing::ValuesIn(test::tiny_models), [](const auto& tested) {
  std::string name = tested.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

class group_executor_test : public ::testing::TestWithParam<group_shape> {
 protected:
  std::shared_ptr<const model_weights> weights_ = test::tiny_weights("qwen2-bias-tied"); // three layers
  test::expected_prompt prompt_ = test::expected_prompts("qwen2-bias-tied")[2];
};

// All plans are out before the first result is looked at.
std::vector<step_outcome> at_once(step_executor& executor, const std::vector<step_plan>& plans) {
  std::vector<std::future<step_outcome>> outcomes;
  for (const step_plan& plan : plans) {
    auto outcome = std::make_shared<std::promise<step_outcome>>();
    outcomes.push_back(outcome->get_future());
    executor.submit(plan, [outcome](step_outcome o) { outcome->set_value(std::move(o)); });
  }
  std::vector<step_outcome> all;
  for (auto& outcome : outcomes) all.push_back(outcome.get());
  return all;
}

// The outputs of such plans; nothing that stays the same on all devices is left out.
std::vector<std::vector<slot_output>> outputs_of(step_executor& executor, const std::vector<step_plan>& plans) {
  std::vector<std::vector<slot_output>> all;
  for (step_outcome& outcome : at_once(executor, plans)) {
    EXPECT_EQ(reason_of(outcome), "");
    all.push_back(std::get<step_result>(std::move(outcome)).outputs);
    for (slot_output& output : all.back()) output.scores.clear(), output.prompt_scores.clear(); // equal to rounding only
  }
  return all;
}

step_plan plan_of(step_number step, std::vector<work_item> items, tokens carried) {
  step_plan plan;
  plan.epoch = 1;
  plan.step = step;
  plan.items = std::move(items);
  plan.tokens = std::move(carried);
  return plan;
}

std::vector<block_id> blocks(block_id first) {
  std::vector<block_id> ids(10);
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

TEST_P(group_executor_test, a_chain_of_decodes_needs_no_result_in_between) {
  std::vector<step_plan> plans{plan_of(1, {{2, work_kind::prefill, 0, 33, true, {}}}, prompt_.tokens)};
  plans[0].opened = {{2, 33, greedy()}};
  plans[0].grants = {{2, 0, blocks(7)}};
  for (std::int32_t i = 0; i < 15; ++i) {
    plans.push_back(plan_of(static_cast<step_number>(i) + 2, {{2, work_kind::decode, 33 + i, 1, true, {}}}, {}));
  }
  tokens drawn;
  for (const auto& outputs : outputs_of(*make(weights_, GetParam()), plans)) drawn.push_back(outputs.at(0).tokens.at(0));
  EXPECT_EQ(drawn, prompt_.greedy);
}

// A prompt whose scores fail in its first chunk, with all that was planned before this was known; then somebody else in its slot, while
// draws of the one before are under way; penalties, a copy, a verification with a wrong draft, and an epoch that ends early.
std::vector<step_plan> eventful_plans(const test::expected_prompt& prompt, token_id poison) {
  tokens bad = part_of(prompt.tokens, 0, 20);
  bad[3] = poison;
  sampling_params penal = greedy();
  penal.repetition_penalty = 1.4F;
  std::vector<step_plan> plans;
  const auto add = [&](std::vector<work_item> items, tokens carried) -> step_plan& {
    return plans.emplace_back(plan_of(plans.size() + 1, std::move(items), std::move(carried)));
  };
  tokens both = part_of(bad, 0, 13);
  both.insert(both.end(), prompt.tokens.begin(), prompt.tokens.end());
  step_plan& first = add({{0, work_kind::prefill, 0, 12, false, 0}, {1, work_kind::prefill, 0, 33, true, {}}}, both);
  first.opened = {{0, 20, greedy()}, {1, 33, penal}};
  first.grants = {{0, 0, blocks(0)}, {1, 0, blocks(10)}};
  add({{0, work_kind::prefill, 12, 8, true, {}}, {1, work_kind::decode, 33, 1, true, {}}}, part_of(bad, 12, 20));
  add({{0, work_kind::decode, 20, 1, true, {}}, {1, work_kind::decode, 34, 1, true, {}}}, {});
  step_plan& reopened = add({{0, work_kind::prefill, 32, 1, true, {}}}, {prompt.tokens[32]}); // no item that goes on from a draw
  reopened.closed = {0};
  reopened.opened = {{0, 33, greedy()}};
  reopened.grants = {{0, 0, {10, 11, 12, 13, 3, 4, 5}}}; // beside slot 1: its prompt's blocks, and a copy of the last
  reopened.copies = {{14, 3}};
  tokens drafts = part_of(prompt.greedy, 1, 4);
  drafts.back() = (drafts.back() + 1) % 200;
  add({{0, work_kind::verify, 33, 4, true, {}}}, drafts);
  add({{0, work_kind::decode, 36, 1, true, {}}, {1, work_kind::decode, 35, 1, true, {}}}, {});
  step_plan& lost = add({{1, work_kind::prefill, 0, 33, true, {}}}, prompt.tokens); // all is computed again
  lost.epoch = 2;
  lost.step = 1;
  lost.opened = {{1, 33, greedy()}};
  lost.grants = {{1, 0, blocks(20)}};
  step_plan& last = add({{1, work_kind::decode, 33, 1, true, {}}}, {});
  last.epoch = 2;
  last.step = 2;
  return plans;
}

TEST_P(group_executor_test, whatever_happens_to_slots_while_plans_are_out_is_as_on_one_device) {
  constexpr token_id poison = 150;
  std::vector<float> table(200 * 64);
  std::copy_n(reinterpret_cast<const float*>(weights_->embedding.data), table.size(), table.begin());
  std::fill_n(table.begin() + poison * 64, 64, std::numeric_limits<float>::infinity());
  auto damaged = std::make_shared<model_weights>(*weights_);
  damaged->embedding.data = reinterpret_cast<const std::byte*>(table.data());
  damaged->head.type = damaged->embedding.type; // the head stays as it was
  const std::vector<step_plan> plans = eventful_plans(prompt_, poison);
  const auto expected = outputs_of(*make(damaged, {1, 1}), plans);
  EXPECT_TRUE(expected[0][0].numeric_fault && expected[1][0].numeric_fault && expected[2][0].numeric_fault);
  EXPECT_EQ(expected[3][0].tokens, part_of(prompt_.greedy, 0, 1));
  EXPECT_EQ(expected[4][0].tokens, part_of(prompt_.greedy, 1, 4));
  EXPECT_EQ(outputs_of(*make(damaged, GetParam()), plans), expected);
  const auto over_tcp = make_group_executor(test::make_tcp_ranks(GetParam()),
                                            [&](const rank_context& rank) { return make_cpu_executor(damaged, options_of_each(), rank); });
  EXPECT_EQ(outputs_of(*over_tcp, plans), expected);
}

TEST_P(group_executor_test, a_breach_ends_the_group_at_once_for_all) {
  const auto executor = make(weights_, GetParam());
  const auto began = std::chrono::steady_clock::now();
  const step_plan breach = plan_of(1, {{3, work_kind::decode, 4, 1, true, {}}}, {});
  const auto outcomes = at_once(*executor, {breach, breach});
  EXPECT_NE(reason_of(outcomes[0]), "");
  EXPECT_NE(reason_of(outcomes[1]), "");
  EXPECT_LT(std::chrono::steady_clock::now() - began, test::group_deadline / 2);
}

INSTANTIATE_TEST_SUITE_P(shapes, group_executor_test,
                         ::testing::Values(group_shape{2, 1}, group_shape{4, 1}, group_shape{1, 2}, group_shape{1, 3}, group_shape{2, 2},
                                           group_shape{4, 3}),
                         [](const auto& tested) { return tested.param.name(); });

// Each rank with its own hand on it: what the others answer, beside the leader.
struct ranks_by_hand {
  ranks_by_hand(std::shared_ptr<const model_weights> weights, group_shape shape, std::vector<cpu_executor_options> options)
      : ranks(make_local_ranks(shape.tp_size, shape.stages, test::group_deadline)), executors(ranks.size()), failures(ranks.size()) {
    each([&](std::size_t i) { executors[i] = make_cpu_executor(weights, options[i % options.size()], ranks[i]); });
  }

  void each(const std::function<void(std::size_t)>& what) {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      threads.emplace_back([&, i] {
        try {
          what(i);
        } catch (const std::exception& e) {
          failures[i] = e.what();
        }
      });
    }
  }
  std::vector<step_outcome> run(const step_plan& plan) {
    std::vector<step_outcome> outcomes(ranks.size());
    each([&](std::size_t i) { executors[i]->submit(plan, [&](step_outcome o) { outcomes[i] = std::move(o); }); });
    return outcomes;
  }

  std::vector<rank_context> ranks;
  std::vector<std::unique_ptr<step_executor>> executors;
  std::vector<std::string> failures;
};

class group_ranks : public ::testing::Test {
 protected:
  static step_plan opening(const tokens& prompt) {
    step_plan plan = plan_of(1, {{0, work_kind::prefill, 0, static_cast<std::int32_t>(prompt.size()), true, {}}}, prompt);
    plan.opened = {{0, static_cast<std::int32_t>(prompt.size()), greedy()}};
    plan.grants = {{0, 0, blocks(0)}};
    return plan;
  }

  std::shared_ptr<const model_weights> weights_ = test::tiny_weights("llama3-gqa");
  test::expected_prompt prompt_ = test::expected_prompts("llama3-gqa")[2];
};

TEST_F(group_ranks, all_answer_every_plan_and_the_leader_alone_says_what_was_drawn) {
  ranks_by_hand group(weights_, {2, 2}, {options_of_each()});
  const auto outcomes = group.run(opening(prompt_.tokens));
  for (std::size_t i = 0; i < 4; ++i) {
    ASSERT_EQ(reason_of(outcomes[i]), "");
    const auto& result = std::get<step_result>(outcomes[i]);
    EXPECT_EQ(result.epoch, 1);
    EXPECT_EQ(result.step, 1);
    ASSERT_EQ(result.outputs.size(), 1U);
    EXPECT_EQ(result.outputs[0].tokens, i == 2 ? part_of(prompt_.greedy, 0, 1) : tokens()) << "rank " << i;
    EXPECT_GT(result.times.compute_ns, 0U);
  }
}

TEST_F(group_ranks, the_smallest_pool_wins_before_anything_is_taken) {
  std::vector<cpu_executor_options> options(4, options_of_each());
  for (std::size_t i = 0; i < 4; ++i) {
    options[i].num_blocks.reset();
    options[i].kv_bytes = (i == 1 ? 40 : 100 + i) * std::size_t{2 * 8 * 16 * 4}; // one layer and one KV head a rank, 8 tokens a block, f32
  }
  const ranks_by_hand group(weights_, {2, 2}, options);
  for (const auto& executor : group.executors) {
    ASSERT_NE(executor, nullptr);
    EXPECT_EQ(executor->info().num_blocks, 40);
    EXPECT_EQ(executor->info(), group.executors[0]->info());
  }
}

TEST_F(group_ranks, that_fit_one_by_one_but_not_together_are_refused_with_the_sum) {
  const auto available = cpu::available_memory();
  ASSERT_TRUE(available);
  for (const group_shape& shape : {group_shape{2, 1}, {1, 2}, {2, 2}}) {
    cpu_executor_options options = options_of_each();
    options.num_blocks.reset();
    options.kv_bytes = static_cast<std::size_t>(*available) / static_cast<std::size_t>(shape.tp_size * shape.stages) * 5 / 4;
    const ranks_by_hand group(weights_, shape, {options});
    for (const std::string& failure : group.failures) {
      EXPECT_THAT(failure, HasSubstr(std::to_string(shape.tp_size * shape.stages) + " ranks on this machine take")) << shape;
    }
  }
}

TEST_F(group_ranks, that_are_told_different_things_refuse_with_both_numbers) {
  std::vector<cpu_executor_options> options(2, options_of_each());
  options[1].max_num_seqs = 5;
  const ranks_by_hand group(weights_, {2, 1}, options);
  for (const std::string& failure : group.failures) {
    EXPECT_THAT(failure, HasSubstr("max_num_seqs"));
    EXPECT_THAT(failure, HasSubstr("8"));
    EXPECT_THAT(failure, HasSubstr("5"));
  }
}

TEST_F(group_ranks, one_that_cannot_be_made_keeps_the_others_from_waiting) {
  const auto began = std::chrono::steady_clock::now();
  try {
    make_group_executor(make_local_ranks(2, 2, test::group_deadline), [&](const rank_context& rank) {
      if (rank.number() == 1) throw load_error("no such file");
      return make_cpu_executor(weights_, options_of_each(), rank);
    });
    FAIL() << "a group of three";
  } catch (const load_error& e) {
    EXPECT_STREQ(e.what(), "no such file");
  }
  EXPECT_LT(std::chrono::steady_clock::now() - began, test::group_deadline / 2);
}

TEST_F(group_ranks, a_lost_rank_fails_the_step_of_all_others_by_name) {
  ranks_by_hand group(weights_, {2, 2}, {options_of_each()});
  const auto first = group.run(opening(prompt_.tokens));
  ASSERT_EQ(reason_of(first[2]), "");
  const step_plan next = plan_of(2, {{0, work_kind::decode, static_cast<std::int32_t>(prompt_.tokens.size()), 1, true, {}}}, {});
  std::vector<step_outcome> outcomes(4);
  group.each([&](std::size_t i) {
    if (i == 3) { // its process ends
      group.executors[3].reset();
      group.ranks[3] = {};
      return;
    }
    group.executors[i]->submit(next, [&](step_outcome o) { outcomes[i] = std::move(o); });
  });
  EXPECT_THAT(reason_of(outcomes[2]), HasSubstr("rank 2 (stage 1, tensor rank 0)"));
  EXPECT_THAT(reason_of(outcomes[2]), HasSubstr("rank 3 (stage 1, tensor rank 1): rank 1 has left the group"));
}

TEST_F(group_ranks, cannot_be_more_than_the_model_gives_work_to) {
  EXPECT_THROW(make(weights_, {3, 1}), load_error);
  EXPECT_THROW(make(weights_, {1, 3}), load_error);
}

// Greedy tokens with the two best at each place.
std::vector<token_scores> scored_generation(step_executor& executor, const tokens& prompt, std::size_t count, epoch_number epoch) {
  plan_writer writer(executor);
  writer.plan.epoch = epoch;
  sampling_params sampling = greedy();
  sampling.top_logprobs = 2;
  const auto length = static_cast<std::int32_t>(prompt.size());
  writer.open(0, length, sampling, length + static_cast<std::int32_t>(count));
  writer.prefill(0, 0, prompt, true);
  std::vector<token_scores> drawn = writer.run()[0].scores;
  while (drawn.size() < count) {
    writer.decode(0, length + static_cast<std::int32_t>(drawn.size()) - 1);
    const std::vector<token_scores> next = writer.run()[0].scores;
    if (next.size() != 1) break;
    drawn.push_back(next[0]);
  }
  return drawn;
}

tokens some_text(std::size_t count, token_id first) {
  tokens text(count);
  for (std::size_t i = 0; i < count; ++i) text[i] = static_cast<token_id>(100 + 97 * i) + 1009 * first;
  return text;
}

// The small model of deploy/fetch_model.sh: nine heads, three KV heads, 30 layers. Its weights are quantised, so a sum over ranks may
// decide otherwise where the two best are close; from there on these are two texts.
TEST(group_of_real_model, says_what_one_device_says) {
  const char* const path = std::getenv("TROUPE_TEST_GGUF");
  if (path == nullptr) GTEST_SKIP() << "TROUPE_TEST_GGUF is not set";
  const auto weights = std::make_shared<const model_weights>(open_checkpoint(path)->load());
  cpu_executor_options options = options_of_each();
  options.max_model_len = 512;
  const tokens prompt = some_text(40, 0);
  const auto whole = scored_generation(*make_cpu_executor(weights, options), prompt, 24, 1);
  ASSERT_EQ(whole.size(), 24U);
  for (const group_shape& shape : {group_shape{1, 2}, {1, 3}, {2, 1}, {3, 1}, {2, 2}, {3, 2}}) {
    const auto executor = make_cpu_group_executor(weights, options, shape.tp_size, shape.stages, std::chrono::seconds(120));
    const auto cut = scored_generation(*executor, prompt, 24, 1);
    if (shape.tp_size == 1) {
      EXPECT_EQ(cut == whole, true) << shape;
      continue;
    }
    ASSERT_EQ(cut.size(), whole.size()) << shape;
    for (std::size_t i = 0; i < whole.size(); ++i) {
      EXPECT_NEAR(cut[i].top[0].logprob, whole[i].top[0].logprob, 0.1) << shape << ", token " << i;
      if (cut[i].chosen.token == whole[i].chosen.token) continue;
      EXPECT_LT(whole[i].top[0].logprob - whole[i].top[1].logprob, 0.1) << shape << ", token " << i;
      break;
    }
  }
}

// With weights as floats no activation is rounded to 8 bits, and sums over ranks change last bits only.
TEST(group_of_real_model, says_the_same_over_two_ranks_where_nothing_is_quantised) {
  const char* const path = std::getenv("TROUPE_TEST_GGUF");
  if (path == nullptr) GTEST_SKIP() << "TROUPE_TEST_GGUF is not set";
  const auto weights = std::make_shared<const model_weights>(widened(open_checkpoint(path)->load(), 2));
  cpu_executor_options options = options_of_each();
  options.max_model_len = 512;
  const auto generate_all = [&](step_executor& executor) {
    std::vector<std::vector<token_scores>> all;
    for (token_id text = 0; text < 10; ++text)
      all.push_back(scored_generation(executor, some_text(12, text), 8, static_cast<epoch_number>(text) + 1));
    return all;
  };
  const auto whole = generate_all(*make_cpu_executor(weights, options));
  const auto cut = generate_all(*make_cpu_group_executor(weights, options, 2, 1, std::chrono::seconds(120)));
  double worst = 0;
  for (std::size_t text = 0; text < whole.size(); ++text) {
    ASSERT_EQ(whole[text].size(), 8U);
    ASSERT_EQ(cut[text].size(), 8U);
    for (std::size_t i = 0; i < 8; ++i) {
      EXPECT_EQ(cut[text][i].chosen.token, whole[text][i].chosen.token) << "text " << text << ", token " << i;
      worst = std::max(worst, std::abs(static_cast<double>(cut[text][i].chosen.logprob - whole[text][i].chosen.logprob)));
    }
  }
  EXPECT_LT(worst, 1e-3);
  RecordProperty("worst", std::to_string(worst));
}

} // namespace
} // namespace troupe
