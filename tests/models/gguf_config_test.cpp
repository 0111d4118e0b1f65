#include "models/gguf_config.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/models/file_builders.hpp"

namespace troupe {
namespace {

using test_files::load_failure;
using testing::ElementsAre;
using testing::HasSubstr;

// Metadata of a small model; set() replaces a key.
value_object metadata_of(const std::string& architecture) {
  value_object keys;
  keys.set("general.architecture", architecture);
  const std::string p = architecture + ".";
  keys.set(p + "embedding_length", 64);
  keys.set(p + "feed_forward_length", 96);
  keys.set(p + "block_count", 2);
  keys.set(p + "context_length", 2048);
  keys.set(p + "attention.head_count", 4);
  keys.set(p + "attention.head_count_kv", 2);
  keys.set(p + "attention.layer_norm_rms_epsilon", 1e-5);
  return keys;
}

file_tensor tensor(const std::string& name, std::vector<std::int64_t> shape) { return {name, "F32", dtype::f32, std::move(shape), {}}; }

std::vector<file_tensor> plain_tensors() { return {tensor("token_embd.weight", {100, 64}), tensor("output.weight", {100, 64})}; }

model_config parse(value_object keys, const std::vector<file_tensor>& tensors = plain_tensors()) {
  return parse_gguf_config(value(std::move(keys)), tensors, "x.gguf");
}

model_config parse_with(const std::string& architecture, const std::vector<std::pair<std::string, value>>& changes) {
  value_object keys = metadata_of(architecture);
  for (const auto& [key, item] : changes) keys.set(key, item);
  return parse(keys);
}

std::string failure_of(const std::string& architecture, const std::vector<std::pair<std::string, value>>& changes) {
  return load_failure([&] { parse_with(architecture, changes); });
}

TEST(gguf_config, llama_files_rotate_neighbours_and_the_others_halves) {
  const model_config llama = parse(metadata_of("llama"));
  EXPECT_EQ(llama.family, "llama");
  EXPECT_TRUE(llama.rope.interleaved);
  EXPECT_EQ(llama.vocab_size, 100);
  EXPECT_EQ(llama.head_dim, 16);
  EXPECT_EQ(llama.num_kv_heads, 2);
  EXPECT_EQ(llama.max_position, 2048);
  EXPECT_EQ(llama.rope.theta, 10000.0);
  EXPECT_FALSE(llama.query_key_value_bias);
  EXPECT_FALSE(parse(metadata_of("qwen2")).rope.interleaved);
  EXPECT_TRUE(parse(metadata_of("qwen2")).query_key_value_bias);
  EXPECT_FALSE(parse(metadata_of("qwen3")).rope.interleaved);
  EXPECT_TRUE(parse(metadata_of("qwen3")).query_key_norm);
}

TEST(gguf_config, heads_and_window_have_their_own_keys) {
  const model_config config = parse_with("qwen3", {{"qwen3.attention.key_length", 24},
                                                   {"qwen3.attention.value_length", 24},
                                                   {"qwen3.rope.dimension_count", 12},
                                                   {"qwen3.rope.freq_base", 1e6},
                                                   {"qwen3.attention.sliding_window", 128}});
  EXPECT_EQ(config.head_dim, 24);
  EXPECT_EQ(config.rope.rotary_dim, 12);
  EXPECT_EQ(config.rope.theta, 1e6);
  EXPECT_EQ(config.sliding_window, 128);
  EXPECT_THAT(failure_of("llama", {{"llama.attention.value_length", 8}}), HasSubstr("differs"));
  EXPECT_EQ(parse_with("llama", {{"llama.attention.sliding_window", 0}}).sliding_window, std::nullopt);
}

TEST(gguf_config, a_file_without_output_weight_is_tied) {
  EXPECT_FALSE(parse(metadata_of("llama")).tied_head);
  EXPECT_TRUE(parse(metadata_of("llama"), {tensor("token_embd.weight", {100, 64})}).tied_head);
}

TEST(gguf_config, optional_biases_follow_from_the_tensors) {
  auto tensors = plain_tensors();
  tensors.push_back(tensor("blk.0.attn_q.bias", {64}));
  EXPECT_TRUE(parse(metadata_of("llama"), tensors).query_key_value_bias);
  EXPECT_FALSE(parse(metadata_of("llama"), tensors).output_bias);
  tensors.push_back(tensor("blk.0.attn_output.bias", {64}));
  EXPECT_TRUE(parse(metadata_of("llama"), tensors).output_bias);
}

TEST(gguf_config, rope_scaling_is_read) {
  const model_config linear = parse_with("llama", {{"llama.rope.scaling.type", "linear"}, {"llama.rope.scaling.factor", 4.0}});
  EXPECT_EQ(linear.rope.scaling, rope_scaling_kind::linear);
  EXPECT_EQ(linear.rope.factor, 4.0);
  EXPECT_EQ(linear.max_position, 8192);
  const model_config yarn = parse_with(
      "qwen2",
      {{"qwen2.rope.scaling.type", "yarn"}, {"qwen2.rope.scaling.factor", 4.0}, {"qwen2.rope.scaling.original_context_length", 2048}});
  EXPECT_EQ(yarn.rope.scaling, rope_scaling_kind::yarn);
  EXPECT_EQ(yarn.rope.original_max_position, 2048.0);
  EXPECT_EQ(yarn.rope.attention_factor, std::nullopt);
  EXPECT_EQ(yarn.max_position, 8192);
  EXPECT_EQ(parse_with("llama", {{"llama.rope.scaling.type", "none"}, {"llama.rope.scaling.factor", 4.0}}).rope.scaling,
            rope_scaling_kind::none);
  EXPECT_EQ(parse_with("llama", {{"llama.rope.scale_linear", 2.0}}).rope.factor, 2.0);
  EXPECT_THAT(failure_of("llama", {{"llama.rope.scaling.type", "longrope"}, {"llama.rope.scaling.factor", 2.0}}),
              HasSubstr("unknown rope type longrope"));
  EXPECT_THAT(failure_of("llama", {{"llama.rope.scaling.type", "yarn"}}), HasSubstr("rope.scaling.factor: missing"));
  EXPECT_THAT(failure_of("llama", {{"llama.rope.scaling.type", "linear"}, {"llama.rope.scaling.factor", 0.5}}), HasSubstr("rope factor"));
}

TEST(gguf_config, yarn_attention_factors_combine) {
  const std::vector<std::pair<std::string, value>> yarn = {{"llama.rope.scaling.type", "yarn"}, {"llama.rope.scaling.factor", 4.0}};
  auto stated = yarn;
  stated.emplace_back("llama.rope.scaling.yarn_attn_factor", 1.25);
  EXPECT_EQ(parse_with("llama", stated).rope.attention_factor, 1.25);
  auto weighted = yarn;
  weighted.emplace_back("llama.rope.scaling.yarn_log_multiplier", 0.5);
  weighted.emplace_back("llama.rope.scaling.attn_factor", 2.0);
  const double growth = 0.1 * std::log(4.0);
  EXPECT_NEAR(parse_with("llama", weighted).rope.attention_factor.value(), 2.0 * (1.0 + growth) / (1.0 + 0.5 * growth), 1e-12);
  auto mixed = yarn;
  mixed.emplace_back("llama.rope.scaling.yarn_ext_factor", 0.5);
  EXPECT_THAT(failure_of("llama", mixed), HasSubstr("yarn_ext_factor"));
}

TEST(gguf_config, frequency_divisors_are_taken_and_checked) {
  std::vector<float> numbers(8, 2.0F);
  const auto parse_divisors = [&](std::vector<std::int64_t> shape) {
    auto tensors = plain_tensors();
    tensors.push_back(tensor("rope_freqs.weight", std::move(shape)));
    tensors.back().data = std::as_bytes(std::span(numbers));
    return parse(metadata_of("llama"), tensors).rope.frequency_divisors;
  };
  EXPECT_EQ(parse_divisors({8}), numbers);
  EXPECT_THAT(load_failure([&] { parse_divisors({4}); }), HasSubstr("rope_freqs.weight: shape [4], expected [8]"));
  for (float bad : {0.0F, -1.0F, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    numbers[3] = bad;
    EXPECT_THAT(load_failure([&] { parse_divisors({8}); }), HasSubstr("rope_freqs.weight")) << bad;
  }
}

TEST(gguf_config, all_tokens_that_end_a_turn_are_end_tokens) {
  value_object keys = metadata_of("llama");
  keys.set("tokenizer.ggml.tokens", value_array{"a", "<|eot_id|>", "<|im_end|>", "<|endoftext|>", "b"});
  keys.set("tokenizer.ggml.token_type", value_array{1, 3, 1, 3, 3}); // <|im_end|> is a normal token here
  keys.set("tokenizer.ggml.eos_token_id", 4);
  keys.set("tokenizer.ggml.eot_token_id", 1);
  keys.set("tokenizer.ggml.bos_token_id", 0);
  EXPECT_THAT(parse(keys).eos_tokens, ElementsAre(4, 1, 3));
  EXPECT_EQ(parse(keys).bos_token, 0);
  EXPECT_THAT(failure_of("llama", {{"tokenizer.ggml.eos_token_id", 100}}), HasSubstr("tokenizer.ggml.eos_token_id"));
}

TEST(gguf_config, more_tokens_than_embedding_rows_are_refused) {
  EXPECT_THAT(failure_of("llama", {{"tokenizer.ggml.tokens", value_array(101, value("x"))}}), HasSubstr("101 tokens"));
}

TEST(gguf_config, what_is_not_supported_is_refused) {
  EXPECT_THAT(failure_of("gpt2", {}), HasSubstr("unknown architecture gpt2"));
  EXPECT_THAT(failure_of("llama", {{"llama.expert_count", 8}}), HasSubstr("experts"));
  EXPECT_THAT(failure_of("llama", {{"split.count", 3}}), HasSubstr("split over several files"));
  EXPECT_THAT(failure_of("llama", {{"llama.attention.head_count", value_array{4, 4}}}), HasSubstr("expected an integer, found array"));
  EXPECT_THAT(load_failure([] { parse(metadata_of("llama"), {}); }), HasSubstr("token_embd.weight: missing"));
  EXPECT_THAT(load_failure([] { parse(metadata_of("llama"), {tensor("token_embd.weight", {100})}); }),
              HasSubstr("token_embd.weight: shape [100]"));
}

TEST(gguf_config, numbers_missing_or_out_of_bounds_are_refused) {
  for (const char* key : {"embedding_length", "feed_forward_length", "block_count", "context_length", "attention.head_count"}) {
    for (const value& bad : {value(), value(0), value(-1), value(std::numeric_limits<std::int64_t>::max()), value(1.5), value("x"),
                             value(std::numeric_limits<double>::infinity()), value(std::numeric_limits<double>::quiet_NaN())}) {
      EXPECT_THAT(failure_of("llama", {{std::string("llama.") + key, bad}}), HasSubstr(key));
    }
  }
  EXPECT_THAT(failure_of("llama", {{"llama.attention.head_count_kv", 3}}), HasSubstr("do not divide"));
  EXPECT_THAT(failure_of("llama", {{"llama.attention.layer_norm_rms_epsilon", value()}}), HasSubstr("epsilon: missing"));
  EXPECT_THAT(failure_of("llama", {{"llama.rope.dimension_count", 18}}), HasSubstr("rotary dimensions"));
  EXPECT_THAT(failure_of("llama", {{"llama.rope.freq_base", 0.0}}), HasSubstr("theta"));
}

} // namespace
} // namespace troupe
