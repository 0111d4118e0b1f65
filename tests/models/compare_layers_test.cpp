#include "models/compare_layers.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "models/widened_weights.hpp"
#include "tests/models/executor_testing.hpp"

namespace troupe {
namespace {

layer_states random_states(std::uint32_t seed) {
  layer_states states{3, 4, 8, {}};
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (int i = 0; i < 3 * 4 * 8; ++i) states.hidden.push_back(normal(random));
  return states;
}

rounding_bounds even_bounds(double distance) { return {4, std::vector<double>(3 * 4, distance)}; }

TEST(compare_layers, finds_the_first_layer_and_token_that_part_and_the_worst_of_each) {
  const layer_states right = random_states(1);
  EXPECT_FALSE(compare_layers(right, right, even_bounds(0)).first_parted);
  layer_states wrong = right;
  const auto spoil = [&](std::size_t layer, std::size_t token, float factor) {
    for (std::size_t i = 0; i < 8; ++i) wrong.hidden[(layer * 4 + token) * 8 + i] *= factor;
  };
  spoil(0, 1, 1.001F); // rounding
  spoil(1, 3, 1.5F);
  spoil(1, 2, 1.3F);
  spoil(2, 0, 2.0F);
  const layer_comparison found = compare_layers(wrong, right, even_bounds(0.01));
  ASSERT_TRUE(found.first_parted);
  EXPECT_EQ(found.first_parted->layer, 1);
  EXPECT_EQ(found.first_parted->token, 2);
  EXPECT_NEAR(found.first_parted->distance, 0.3, 1e-6);
  ASSERT_EQ(found.worst.size(), 3U);
  EXPECT_EQ(found.worst[1].token, 3);
  EXPECT_NEAR(found.worst[1].distance, 0.5, 1e-6);
  EXPECT_NEAR(found.worst[0].distance, 0.001, 1e-6);
}

TEST(compare_layers, a_state_that_is_no_number_is_infinitely_far) {
  layer_states wrong = random_states(2);
  wrong.hidden[5] = std::numeric_limits<float>::quiet_NaN();
  const layer_comparison found = compare_layers(wrong, random_states(2), even_bounds(100));
  ASSERT_TRUE(found.first_parted);
  EXPECT_TRUE(std::isinf(found.first_parted->distance));
  EXPECT_EQ(relative_distance(std::vector<float>{0, 0}, std::vector<float>{0, 0}), 0);
}

TEST(compare_layers, bounds_are_five_deviations_of_the_token_or_of_all) {
  const layer_states plain = random_states(3);
  std::vector<layer_states> probes(2, plain);
  for (std::size_t i = 0; i < 8; ++i) { // token 1 of layer 2: moved by 0.3 and 0.1 of its length
    probes[0].hidden[(2 * 4 + 1) * 8 + i] *= 1.3F;
    probes[1].hidden[(2 * 4 + 1) * 8 + i] *= 0.9F;
  }
  const rounding_bounds bounds = measured_bounds(plain, probes);
  EXPECT_NEAR(bounds.at(2, 1), 5 * std::sqrt(0.05), 1e-6);
  EXPECT_NEAR(bounds.at(2, 0), 5 * std::sqrt(0.05 / 4), 1e-6);
  EXPECT_EQ(bounds.at(1, 1), 0);
  probes[0].hidden[0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(measured_bounds(plain, probes).at(0, 0), 0) << "rounding does not explain that";
}

// The CPU's f32 path as the reference, and as what is tested the same with weights rounded otherwise, then with a fault planted in one
// layer.
TEST(compare_layers, measured_bounds_let_rounding_pass_and_find_faults) {
  const model_weights right = *test::tiny_weights("llama3-gqa");
  const test::tokens prompt = test::expected_prompts("llama3-gqa")[3].tokens;
  const auto states = [&](const model_weights& w) { return cpu_layer_states(std::make_shared<const model_weights>(w), prompt); };
  const layer_states reference = states(right);
  for (const double unit : {0x1p-8, 0x1p-11}) {
    std::vector<layer_states> probes;
    for (const std::uint32_t seed : {1U, 2U, 3U, 4U, 5U, 6U, 7U, 8U}) probes.push_back(states(jittered(right, unit, seed, 2)));
    const rounding_bounds bounds = measured_bounds(reference, probes);
    const auto parted = [&](const model_weights& w) {
      const auto found = compare_layers(states(w), reference, bounds).first_parted;
      return found ? found->layer : -1;
    };
    for (const std::uint32_t seed : {11U, 12U, 13U, 14U, 15U}) EXPECT_EQ(parted(jittered(right, unit, seed, 2)), -1) << unit;

    model_weights swapped = widened(right, 2); // the first two queries' heads of the second layer
    const weight_view& query = swapped.layers[1].query;
    auto* const rows = const_cast<float*>(reinterpret_cast<const float*>(query.data));
    const std::ptrdiff_t head = right.config.head_dim * query.columns;
    std::swap_ranges(rows, rows + head, rows + head);
    EXPECT_EQ(parted(swapped), 1) << unit;

    model_weights wrong = widened(right, 2);
    auto* const down = const_cast<float*>(reinterpret_cast<const float*>(wrong.layers[1].down.data));
    down[7] = unit == 0x1p-8 ? 4.0F : 0.5F;
    EXPECT_EQ(parted(wrong), 1) << unit;

    model_weights epsilon = right;
    epsilon.config.norm_epsilon *= unit == 0x1p-8 ? 1000 : 100;
    EXPECT_EQ(parted(epsilon), 0) << unit;
  }
}

TEST(compare_layers, states_of_the_cpu_are_those_that_give_its_logits) {
  const auto weights = test::tiny_weights("llama3-gqa");
  const test::expected_prompt prompt = test::expected_prompts("llama3-gqa")[2];
  const layer_states states = cpu_layer_states(weights, prompt.tokens);
  ASSERT_EQ(states.layers, weights->config.num_layers);
  ASSERT_EQ(states.tokens, static_cast<std::int32_t>(prompt.tokens.size()));
  // Final norm and head over the last layer's state of the last token.
  const auto last = states.at(states.layers - 1, states.tokens - 1);
  double square = 0;
  for (const float x : last) square += static_cast<double>(x) * static_cast<double>(x);
  const double scale = 1 / std::sqrt(square / static_cast<double>(last.size()) + static_cast<double>(weights->config.norm_epsilon));
  const auto* head = reinterpret_cast<const float*>(weights->head.data);
  for (std::size_t token = 0; token < 200; token += 17) {
    double logit = 0;
    for (std::size_t i = 0; i < last.size(); ++i) {
      logit += static_cast<double>(last[i]) * scale * static_cast<double>(weights->final_norm[i]) *
               static_cast<double>(head[token * last.size() + i]);
    }
    EXPECT_NEAR(logit, static_cast<double>(prompt.logits[(prompt.tokens.size() - 1) * 200 + token]), 1e-3);
  }
}

TEST(widened_weights, hold_every_matrix_as_floats_and_give_the_same_tokens) {
  const auto stored = std::make_shared<const model_weights>(
      open_checkpoint(std::string(TROUPE_SOURCE_DIR) + "/tests/fixtures/models/qwen2-bias-tied-f16.gguf")->load());
  ASSERT_EQ(stored->layers[0].query.type, dtype::f16);
  const auto floats = std::make_shared<const model_weights>(widened(*stored, 3));
  EXPECT_EQ(floats->layers[0].query.type, dtype::f32);
  EXPECT_EQ(floats->head.data, floats->embedding.data) << "tied";
  const auto from = make_cpu_executor(stored, test::small_options()), to = make_cpu_executor(floats, test::small_options());
  test::plan_writer one(*from), other(*to);
  const test::tokens prompt = test::expected_prompts("qwen2-bias-tied")[2].tokens;
  EXPECT_EQ(test::generate(other, 0, prompt, test::greedy(), 12), test::generate(one, 0, prompt, test::greedy(), 12));
}

} // namespace
} // namespace troupe
