// A model in two stages on two GPUs against the same model on one; skipped where there are fewer.
#include <chrono>
#include <thread>

#include "models/gpu_weights.hpp"
#include "models/group_executor.hpp"
#include "tests/models/gpu/gpu_model_testing.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;
using test::greedy;
using test::plan_writer;
using test::tokens;

rank_context stage_of_two(int stage) { return {0, 1, stage, 2, nullptr, nullptr}; }

TEST(gpu_stages, each_holds_its_layers_and_its_end_of_the_model) {
  for (const bool tied : {false, true}) {
    model_config config = test::quick_config(64);
    config.num_layers = 5;
    config.tied_head = tied;
    const model_weights whole = make_dummy_weights(config, dtype::f32, 5);
    const model_weights first = gpu_share(whole, stage_of_two(0)), last = gpu_share(whole, stage_of_two(1));
    EXPECT_EQ(first.config.num_layers + last.config.num_layers, 5);
    EXPECT_EQ(first.layers.size() + last.layers.size(), 5U);
    EXPECT_EQ(first.embedding.data, whole.embedding.data);
    EXPECT_FALSE(first.head);
    EXPECT_FALSE(last.embedding);
    EXPECT_EQ(last.head.data, whole.head.data);
    EXPECT_EQ(last.head.rows, 1003);
    const std::size_t matrix = std::size_t{1003} * 256 * 2, layers = gpu_weight_bytes(first.config, {false, false, {}});
    EXPECT_GE(gpu_weight_bytes(first.config, ends_of(config, stage_of_two(0))), layers + matrix);
    EXPECT_LT(gpu_weight_bytes(first.config, ends_of(config, stage_of_two(0))), layers + matrix + 4096) << "no head, no final norm";
  }
}

// A stage on a thread and GPU of its own.
class gpu_pair_stages : public test::gpu_pair_test {
 protected:
  static std::unique_ptr<step_executor> make(const model_weights& whole, const gpu_executor_options& options) {
    return make_group_executor(make_local_ranks(1, 2, 30s), [&](const rank_context& rank) {
      gpu_executor_options mine = options;
      mine.device = rank.stage;
      return make_gpu_executor(whole, mine, join_gpus(rank, rank.stage, 5s));
    });
  }
};

struct stages_case {
  const char* name;
  dtype type = dtype::f16;
  bool head_norm = false, window = false, tied = false, plain = false, graphs = true;
};

std::string label(const ::testing::TestParamInfo<stages_case>& info) { return info.param.name; }

class gpu_pair_stages_model : public gpu_pair_stages, public ::testing::WithParamInterface<stages_case> {};

TEST_P(gpu_pair_stages_model, scores_and_greedy_tokens_are_those_of_one_gpu) {
  const stages_case& p = GetParam();
  model_config config = test::quick_config(64);
  config.query_key_norm = p.head_norm;
  config.tied_head = p.tied;
  if (p.window) config.sliding_window = 40;
  const model_weights whole = make_dummy_weights(config, dtype::f32, std::random_device{}());
  gpu_executor_options options = test::small_gpu_options();
  options.type = p.type;
  options.graphs = p.graphs;
  if (p.plain) options = reference(options);
  const auto right = ask(*make_gpu_executor(whole, options));
  expect_same_answers(*make(whole, options), right, 1e-5F, true); // the same kernels on the same rows
}

INSTANTIATE_TEST_SUITE_P(models, gpu_pair_stages_model,
                         ::testing::Values(stages_case{.name = "f16"}, stages_case{.name = "bf16", .type = dtype::bf16},
                                           stages_case{.name = "head_norm", .head_norm = true},
                                           stages_case{.name = "tied", .window = true, .tied = true},
                                           stages_case{.name = "without_graphs", .graphs = false},
                                           stages_case{.name = "reference", .plain = true}),
                         label);

// Two halves of the sequences by turns, three plans on their way: those of the other half lie between a draw and what goes on from it.
std::vector<tokens> by_turns(step_executor& executor, const std::vector<tokens>& prompts, std::int32_t steps) {
  plan_writer writer(executor);
  std::vector<std::pair<std::vector<std::size_t>, std::future<step_outcome>>> under_way;
  std::vector<tokens> drawn(prompts.size());
  const auto take_first = [&] {
    const step_outcome outcome = under_way.front().second.get();
    ASSERT_TRUE(std::holds_alternative<step_result>(outcome)) << std::get<step_failure>(outcome).reason;
    const auto& outputs = std::get<step_result>(outcome).outputs;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      tokens& mine = drawn[under_way.front().first[i]];
      mine.insert(mine.end(), outputs[i].tokens.begin(), outputs[i].tokens.end());
    }
    under_way.erase(under_way.begin());
  };
  for (std::int32_t step = 0; step < steps; ++step) {
    for (const std::size_t half : {0U, 1U}) {
      std::vector<std::size_t> mine;
      for (std::size_t i = half; i < prompts.size(); i += 2) mine.push_back(i);
      for (const std::size_t i : mine) {
        const auto slot = static_cast<slot_id>(i), length = static_cast<std::int32_t>(prompts[i].size());
        if (step == 0) {
          writer.open(slot, length, greedy(), length + steps);
          writer.prefill(slot, 0, prompts[i], true);
        } else {
          writer.decode(slot, length + step - 1);
        }
      }
      if (under_way.size() == 3) take_first();
      under_way.emplace_back(mine, writer.start());
    }
  }
  while (!under_way.empty()) take_first();
  return drawn;
}

TEST_F(gpu_pair_stages, plans_under_way_draw_what_they_draw_on_one_gpu) {
  const model_weights whole = make_dummy_weights(test::quick_config(64), dtype::f32, 7);
  std::vector<tokens> prompts;
  for (std::size_t i = 0; i < 6; ++i) prompts.push_back(random_tokens(10 + 9 * i));
  std::vector<tokens> right;
  {
    const auto one = make_gpu_executor(whole, test::small_gpu_options());
    right = by_turns(*one, prompts, 20);
  }
  const auto two = make(whole, test::small_gpu_options());
  EXPECT_EQ(by_turns(*two, prompts, 20), right);
  for (const tokens& text : right) EXPECT_EQ(text.size(), 20U);
}

TEST_F(gpu_pair_stages, drafts_are_judged_on_both_stages_alike) {
  const model_weights whole = make_dummy_weights(test::quick_config(64), dtype::f32, 7);
  const tokens prompt = random_tokens(30);
  const auto texts = [&](step_executor& executor) {
    const tokens alone = [&] {
      plan_writer writer(executor);
      return test::generate(writer, 0, prompt, greedy(), 6);
    }();
    plan_writer writer(executor);
    writer.plan.epoch = 2;
    writer.open(0, 30, greedy(), 64);
    writer.prefill(0, 0, prompt, true);
    tokens drawn = writer.run()[0].tokens;
    writer.verify(0, 30, {alone[1], static_cast<token_id>((alone[2] + 1) % 1003), 5}); // the first is right, the second is not
    const tokens judged = writer.run()[0].tokens;
    drawn.insert(drawn.end(), judged.begin(), judged.end());
    writer.decode(0, 30 + static_cast<std::int32_t>(judged.size()));
    drawn.push_back(writer.run()[0].tokens.at(0));
    return drawn;
  };
  tokens right;
  {
    const auto one = make_gpu_executor(whole, test::small_gpu_options());
    right = texts(*one);
  }
  const auto two = make(whole, test::small_gpu_options());
  EXPECT_EQ(texts(*two), right);
  EXPECT_GE(right.size(), 3U);
}

TEST_F(gpu_pair_stages, a_stage_that_does_not_come_fails_the_step_and_a_new_group_forms) {
  const model_weights whole = make_dummy_weights(test::quick_config(64), dtype::f32, 7);
  {
    const auto ranks = make_local_ranks(1, 2, 30s);
    std::vector<std::unique_ptr<step_executor>> each(2);
    {
      std::vector<std::jthread> threads;
      for (const rank_context& rank : ranks) {
        threads.emplace_back([&, rank] {
          gpu_executor_options options = test::small_gpu_options();
          options.device = rank.stage;
          each[static_cast<std::size_t>(rank.stage)] = make_gpu_executor(whole, options, join_gpus(rank, rank.stage, 1s));
        });
      }
    }
    plan_writer writer(*each[0]);
    writer.open(0, 40, greedy(), 64);
    writer.prefill(0, 0, random_tokens(40), true);
    auto first = writer.start();
    writer.decode(0, 40);
    auto second = writer.start();
    for (auto* outcome : {&first, &second}) {
      ASSERT_EQ(outcome->wait_for(20s), std::future_status::ready);
      const step_outcome got = outcome->get();
      ASSERT_TRUE(std::holds_alternative<step_failure>(got));
      EXPECT_TRUE(std::get<step_failure>(got).by_peer);
    }
  }
  const auto two = make(whole, test::small_gpu_options());
  plan_writer writer(*two);
  EXPECT_EQ(test::generate(writer, 0, random_tokens(40), greedy(), 8).size(), 8U);
}

} // namespace
} // namespace troupe
