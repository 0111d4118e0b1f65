// The same checkpoints on the GPU and on the CPU reference, within the rounding of the GPU's element type.
#include "tests/models/gpu/gpu_model_testing.hpp"

namespace troupe {
namespace {

using test::expect_close;
using test::part_of;
using test::report;
using test::tokens;

constexpr float tolerance_of(dtype type) { return type == dtype::f16 ? 0.03F : 0.24F; }

struct tested_model {
  std::string name; // a fixture's
  dtype type;
};

std::string label(const ::testing::TestParamInfo<tested_model>& info) {
  std::string name = info.param.name + (info.param.type == dtype::f16 ? "_f16" : "_bf16");
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == '-' || c == '.'; }, '_');
  return name;
}

class gpu_fixture_model : public test::gpu_model_test, public ::testing::WithParamInterface<tested_model> {};

TEST_P(gpu_fixture_model, scores_and_greedy_tokens_are_the_cpus_whatever_the_chunks) {
  const auto weights = test::tiny_weights(GetParam().name);
  gpu_executor_options options = test::small_gpu_options();
  options.type = GetParam().type;
  const auto gpu = make_gpu_executor(*weights, options);
  cpu_executor_options on_cpu = test::small_options();
  const auto cpu = make_cpu_executor(weights, on_cpu);
  const tokens text = test::expected_prompts("llama3-gqa")[3].tokens; // ids below every fixture's vocabulary
  for (const std::size_t length : {1U, 16U, 17U, 70U}) {
    const tokens prompt = part_of(text, 0, length);
    const auto right = report(*cpu, prompt, 256, 16);
    for (const std::size_t chunk : {256U, 23U, 1U}) {
      SCOPED_TRACE(std::to_string(length) + " tokens in chunks of " + std::to_string(chunk));
      expect_close(report(*gpu, prompt, chunk, 16, 3, 9), right, tolerance_of(GetParam().type));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(fixtures, gpu_fixture_model,
                         ::testing::Values(tested_model{"llama3-gqa", dtype::f16}, tested_model{"llama3-gqa", dtype::bf16},
                                           tested_model{"llama-linear-tied", dtype::f16}, tested_model{"mistral-window", dtype::f16},
                                           tested_model{"mistral-window", dtype::bf16}, tested_model{"qwen2-bias-tied", dtype::f16},
                                           tested_model{"qwen3-yarn", dtype::f16}, tested_model{"qwen3-yarn", dtype::bf16},
                                           // pairs (2i, 2i + 1), and stored F16
                                           tested_model{"llama3-gqa.gguf", dtype::f16},
                                           tested_model{"qwen2-bias-tied-f16.gguf", dtype::f16},
                                           tested_model{"qwen3-yarn.gguf", dtype::f16}),
                         label);

struct switches {
  std::int32_t head_dim;
  std::optional<std::int32_t> window;
  bool bias, head_norm, fused, graphs, overlapping, asynchronous, plain;
};

class gpu_dummy_model : public test::gpu_model_test, public ::testing::WithParamInterface<switches> {};

TEST_P(gpu_dummy_model, scores_and_greedy_tokens_are_the_cpus) {
  const switches& s = GetParam();
  model_config config = test::quick_config(s.head_dim);
  config.sliding_window = s.window;
  config.first_sliding_layer = 1;
  config.query_key_value_bias = s.bias;
  config.query_key_norm = s.head_norm;
  const auto weights = std::make_shared<const model_weights>(make_dummy_weights(config, dtype::f32, 7));
  for (const dtype type : {dtype::f16, dtype::bf16}) {
    gpu_executor_options options = test::small_gpu_options();
    options.type = type;
    options.fused = s.fused;
    options.graphs = s.graphs;
    options.overlapping_launches = s.overlapping;
    options.asynchronous_copies = s.asynchronous;
    options.plain_attention = s.plain;
    const auto gpu = make_gpu_executor(*weights, options);
    cpu_executor_options on_cpu = test::small_options();
    const auto cpu = make_cpu_executor(weights, on_cpu);
    std::mt19937 random(std::random_device{}());
    tokens text;
    for (int i = 0; i < 200; ++i) text.push_back(static_cast<token_id>(random() % 1003));
    const auto right = report(*cpu, text, 256, 12);
    for (const std::size_t chunk : {256U, 67U}) {
      SCOPED_TRACE("chunks of " + std::to_string(chunk));
      expect_close(report(*gpu, text, chunk, 12), right, tolerance_of(type));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(shapes, gpu_dummy_model,
                         ::testing::Values(switches{64, {}, false, false, true, true, true, true, false},
                                           switches{64, 50, true, false, true, true, true, true, false},
                                           switches{128, {}, false, true, true, true, true, true, false},
                                           switches{128, 100, false, false, true, true, false, true, false},
                                           switches{64, {}, true, false, true, false, true, true, false},
                                           switches{64, {}, false, false, false, true, false, true, false},
                                           switches{128, {}, false, false, false, false, false, false, false},
                                           switches{128, 33, true, true, false, false, false, false, true}));

using gpu_device_weights = test::gpu_model_test;

TEST_F(gpu_device_weights, made_on_the_device_give_numbers) {
  gpu_executor_options options = test::small_gpu_options();
  const auto gpu = make_gpu_executor_with_dummy_weights(test::quick_config(64), options);
  const auto got = report(*gpu, {1, 2, 3, 4, 5}, 5, 20);
  EXPECT_EQ(got.drawn.size(), 20U);
  EXPECT_LT(got.scores[0].chosen.logprob, -1.0F) << "random weights know nothing";
}

} // namespace
} // namespace troupe
