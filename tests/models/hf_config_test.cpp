#include "models/hf_config.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/json.hpp"
#include "tests/models/file_builders.hpp"

namespace troupe {
namespace {

using test_files::load_failure;
using testing::ElementsAre;
using testing::HasSubstr;

// A small valid config with `changes` (an object's text) laid over it; a member set to "DELETE" goes away.
value config_with(const std::string& architecture, const std::string& changes) {
  value base =
      json::parse(R"({"architectures":[")" + architecture +
                  R"("],"hidden_size":64,"intermediate_size":96,"num_hidden_layers":4,)"
                  R"("num_attention_heads":4,"num_key_value_heads":2,"vocab_size":100,"max_position_embeddings":4096,"rms_norm_eps":1e-5})")
          .value();
  const value over = json::parse(changes).value();
  value_object merged;
  for (const auto& [key, item] : base.as_object().entries()) {
    const value* change = over.find(key);
    if (!(change && *change == value("DELETE"))) merged.set(key, change ? *change : item);
  }
  for (const auto& [key, item] : over.as_object().entries()) {
    if (!merged.find(key) && item != value("DELETE")) merged.set(key, item);
  }
  return merged;
}

model_config parse(const std::string& architecture, const std::string& changes = "{}", const std::string& generation = "{}") {
  return parse_hf_config(config_with(architecture, changes), json::parse(generation).value(), "config.json");
}

std::string failure_of(const std::string& architecture, const std::string& changes, const std::string& generation = "{}") {
  return load_failure([&] { parse(architecture, changes, generation); });
}

TEST(hf_config, llama_takes_its_shapes) {
  const model_config config = parse("LlamaForCausalLM", R"({"rope_theta":500000.0,"tie_word_embeddings":true})");
  EXPECT_EQ(config.family, "llama");
  EXPECT_EQ(config.vocab_size, 100);
  EXPECT_EQ(config.hidden_size, 64);
  EXPECT_EQ(config.intermediate_size, 96);
  EXPECT_EQ(config.num_layers, 4);
  EXPECT_EQ(config.num_heads, 4);
  EXPECT_EQ(config.num_kv_heads, 2);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.rope.rotary_dim, 16);
  EXPECT_FALSE(config.rope.interleaved);
  EXPECT_EQ(config.rope.theta, 500000.0);
  EXPECT_EQ(config.max_position, 4096);
  EXPECT_TRUE(config.tied_head);
  EXPECT_FALSE(config.sliding_window);
  EXPECT_FALSE(config.query_key_value_bias);
}

TEST(hf_config, absent_keys_take_each_familys_defaults) {
  const std::string bare = R"({"num_key_value_heads":"DELETE","rms_norm_eps":"DELETE","num_attention_heads":64,"hidden_size":128})";
  EXPECT_EQ(parse("LlamaForCausalLM", bare).num_kv_heads, 64);
  EXPECT_EQ(parse("MistralForCausalLM", bare).num_kv_heads, 8);
  EXPECT_EQ(parse("Qwen2ForCausalLM", bare).num_kv_heads, 32);
  EXPECT_EQ(parse("Qwen3ForCausalLM", bare).head_dim, 128);
  EXPECT_FLOAT_EQ(parse("LlamaForCausalLM", bare).norm_epsilon, 1e-6F);
  EXPECT_FALSE(parse("LlamaForCausalLM").tied_head);
  EXPECT_EQ(parse("LlamaForCausalLM").rope.theta, 10000.0);
}

TEST(hf_config, null_kv_heads_are_as_many_as_heads_whatever_the_familys_default) {
  for (const char* family : {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}) {
    EXPECT_EQ(parse(family, R"({"num_key_value_heads":null})").num_kv_heads, 4) << family;
  }
}

TEST(hf_config, biases_and_norms_follow_the_family_or_the_config) {
  EXPECT_TRUE(parse("Qwen2ForCausalLM").query_key_value_bias);
  EXPECT_FALSE(parse("Qwen2ForCausalLM").output_bias);
  EXPECT_FALSE(parse("Qwen2ForCausalLM").query_key_norm);
  const model_config biased = parse("LlamaForCausalLM", R"({"attention_bias":true})");
  EXPECT_TRUE(biased.query_key_value_bias);
  EXPECT_TRUE(biased.output_bias);
  EXPECT_FALSE(parse("MistralForCausalLM", R"({"attention_bias":true})").query_key_value_bias);
  EXPECT_TRUE(parse("Qwen3ForCausalLM").query_key_norm);
  EXPECT_EQ(parse("Qwen3ForCausalLM", R"({"head_dim":40})").head_dim, 40);
}

TEST(hf_config, sliding_windows_follow_each_familys_rules) {
  EXPECT_EQ(parse("MistralForCausalLM", R"({"sliding_window":77})").sliding_window, 77);
  EXPECT_EQ(parse("MistralForCausalLM", R"({"sliding_window":null})").sliding_window, std::nullopt);
  EXPECT_EQ(parse("MistralForCausalLM").sliding_window, 4096);
  EXPECT_EQ(parse("LlamaForCausalLM", R"({"sliding_window":77})").sliding_window, std::nullopt);
  const model_config partial = parse("Qwen2ForCausalLM", R"({"use_sliding_window":true,"sliding_window":32,"max_window_layers":3})");
  EXPECT_EQ(partial.sliding_window, 32);
  EXPECT_EQ(partial.first_sliding_layer, 3);
  EXPECT_EQ(parse("Qwen2ForCausalLM", R"({"use_sliding_window":false,"sliding_window":32,"max_window_layers":0})").sliding_window,
            std::nullopt);
  EXPECT_EQ(parse("Qwen2ForCausalLM", R"({"use_sliding_window":true,"sliding_window":32,"max_window_layers":4})").sliding_window,
            std::nullopt);
}

TEST(hf_config, layer_types_are_read_and_orders_that_cannot_run_are_refused) {
  const std::string window = R"({"use_sliding_window":true,"sliding_window":32,"layer_types":)";
  const auto kinds = [](std::string_view letters) {
    std::string list = "[";
    for (char c : letters) list += std::string(list.size() > 1 ? "," : "") + (c == 's' ? "\"sliding_attention\"" : "\"full_attention\"");
    return list + "]}";
  };
  EXPECT_EQ(parse("Qwen3ForCausalLM", window + kinds("fsss")).first_sliding_layer, 1);
  EXPECT_EQ(parse("Qwen3ForCausalLM", window + kinds("ffff")).sliding_window, std::nullopt);
  EXPECT_THAT(failure_of("Qwen3ForCausalLM", window + kinds("sfsf")), HasSubstr("layer_types"));
  EXPECT_THAT(failure_of("Qwen3ForCausalLM", window + kinds("fs")), HasSubstr("one entry per layer"));
  EXPECT_THAT(failure_of("MistralForCausalLM", window + kinds("fsss")), HasSubstr("layer_types"));
}

TEST(hf_config, unknown_architectures_and_model_types_are_refused_by_name) {
  EXPECT_THAT(failure_of("MixtralForCausalLM", "{}"), HasSubstr("unknown architecture MixtralForCausalLM"));
  EXPECT_EQ(parse("LlamaForCausalLM", R"({"architectures":null,"model_type":"qwen2"})").family, "qwen2");
  EXPECT_THAT(failure_of("LlamaForCausalLM", R"({"architectures":null,"model_type":"gpt2"})"), HasSubstr("unknown model type gpt2"));
  EXPECT_THAT(failure_of("LlamaForCausalLM", R"({"architectures":"DELETE"})"), HasSubstr("architectures: missing"));
}

TEST(hf_config, what_would_change_the_numbers_and_is_not_supported_is_refused) {
  EXPECT_THAT(failure_of("LlamaForCausalLM", R"({"hidden_act":"gelu"})"), HasSubstr("activation gelu"));
  EXPECT_THAT(failure_of("LlamaForCausalLM", R"({"mlp_bias":true})"), HasSubstr("mlp_bias"));
  EXPECT_THAT(failure_of("LlamaForCausalLM", R"({"quantization_config":{"quant_method":"gptq"}})"), HasSubstr("quantization_config"));
  EXPECT_EQ(failure_of("LlamaForCausalLM", R"({"hidden_act":"silu","mlp_bias":false,"quantization_config":null})"), "");
}

TEST(hf_config, numbers_missing_of_a_wrong_kind_or_out_of_bounds_are_refused) {
  const auto llama_failure = [](const std::string& changes) { return failure_of("LlamaForCausalLM", changes); };
  for (const char* key :
       {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "max_position_embeddings"}) {
    for (const char* bad : {"\"DELETE\"", "0", "-1", "4.5", "\"64\"", "9223372036854775807", "1e300", "true", "[64]", "null"}) {
      EXPECT_THAT(llama_failure(std::string("{\"") + key + "\":" + bad + "}"), HasSubstr(key)) << bad;
    }
  }
  EXPECT_EQ(llama_failure(R"({"hidden_size":64.0})"), "");
  EXPECT_THAT(llama_failure(R"({"num_key_value_heads":3})"), HasSubstr("do not divide"));
  EXPECT_THAT(llama_failure(R"({"hidden_size":66})"), HasSubstr("does not divide"));
  EXPECT_THAT(llama_failure(R"({"head_dim":15})"), HasSubstr("rotary dimensions"));
  EXPECT_THAT(llama_failure(R"({"num_attention_heads":4096,"num_key_value_heads":4096,"head_dim":4096})"),
              HasSubstr("heads times head dimension"));
  EXPECT_THAT(llama_failure(R"({"rms_norm_eps":0})"), HasSubstr("epsilon"));
  EXPECT_THAT(llama_failure(R"({"rope_theta":0.5})"), HasSubstr("theta"));
  EXPECT_THAT(failure_of("MistralForCausalLM", R"({"sliding_window":0})"), HasSubstr("sliding_window"));
}

TEST(hf_config, end_tokens_of_both_files_are_taken_once_each) {
  const model_config config = parse("LlamaForCausalLM", R"({"bos_token_id":1,"eos_token_id":[2,5]})", R"({"eos_token_id":[5,7]})");
  EXPECT_EQ(config.bos_token, 1);
  EXPECT_THAT(config.eos_tokens, ElementsAre(2, 5, 7));
  EXPECT_THAT(parse("LlamaForCausalLM", R"({"eos_token_id":2})", R"({"eos_token_id":3})").eos_tokens, ElementsAre(2, 3));
  EXPECT_TRUE(parse("LlamaForCausalLM", R"({"eos_token_id":null,"bos_token_id":null})").eos_tokens.empty());
  EXPECT_THAT(failure_of("LlamaForCausalLM", R"({"eos_token_id":100})"), HasSubstr("eos_token_id"));
  EXPECT_THAT(failure_of("LlamaForCausalLM", "{}", R"({"eos_token_id":-1})"), HasSubstr("generation_config.json: eos_token_id"));
}

TEST(hf_rope, scaling_is_read_under_the_old_and_the_new_keys) {
  for (const char* type_key : {"type", "rope_type"}) {
    for (const char* section : {"rope_scaling", "rope_parameters"}) {
      const std::string head = std::string("{\"") + section + "\":{\"" + type_key + "\":";
      const rope_config linear = parse("LlamaForCausalLM", head + R"("linear","factor":4}})").rope;
      EXPECT_EQ(linear.scaling, rope_scaling_kind::linear);
      EXPECT_EQ(linear.factor, 4.0);
      const rope_config llama3 = parse("LlamaForCausalLM", head + R"("llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4,)"
                                                                  R"("original_max_position_embeddings":512}})")
                                     .rope;
      EXPECT_EQ(llama3.scaling, rope_scaling_kind::llama3);
      EXPECT_EQ(llama3.factor, 8.0);
      EXPECT_EQ(llama3.high_freq_factor, 4.0);
      EXPECT_EQ(llama3.original_max_position, 512.0);
      const rope_config yarn =
          parse("Qwen3ForCausalLM", head + R"("yarn","factor":4,"original_max_position_embeddings":4096,"beta_fast":16}})").rope;
      EXPECT_EQ(yarn.scaling, rope_scaling_kind::yarn);
      EXPECT_EQ(yarn.beta_fast, 16.0);
      EXPECT_EQ(yarn.beta_slow, 1.0);
      EXPECT_EQ(yarn.attention_factor, std::nullopt);
      EXPECT_EQ(parse("LlamaForCausalLM", head + R"("default"}})").rope.scaling, rope_scaling_kind::none);
    }
  }
  EXPECT_EQ(parse("LlamaForCausalLM", R"({"rope_scaling":null})").rope.scaling, rope_scaling_kind::none);
}

TEST(hf_rope, the_newer_section_carries_theta_and_goes_first) {
  const rope_config rope =
      parse("LlamaForCausalLM",
            R"({"rope_theta":7e5,"rope_parameters":{"rope_type":"default","rope_theta":5e5,"partial_rotary_factor":0.5},)"
            R"("rope_scaling":{"type":"linear","factor":2}})")
          .rope;
  EXPECT_EQ(rope.theta, 5e5);
  EXPECT_EQ(rope.rotary_dim, 8);
  EXPECT_EQ(rope.scaling, rope_scaling_kind::none);
}

TEST(hf_rope, yarn_lifts_the_context_limit) {
  const auto limit = [](const std::string& changes) { return parse("Qwen2ForCausalLM", changes).max_position; };
  EXPECT_EQ(limit(R"({"rope_scaling":{"type":"yarn","factor":4.0,"original_max_position_embeddings":4096}})"), 16384);
  EXPECT_EQ(limit(R"({"rope_scaling":{"rope_type":"yarn","factor":4.0}})"), 16384);
  // Already lifted by whoever wrote the file.
  EXPECT_EQ(
      limit(R"({"max_position_embeddings":16384,"rope_scaling":{"type":"yarn","factor":4.0,"original_max_position_embeddings":4096}})"),
      16384);
  EXPECT_EQ(
      limit(R"({"max_position_embeddings":16384,"rope_scaling":{"type":"yarn","factor":null,"original_max_position_embeddings":4096}})"),
      16384);
  EXPECT_EQ(limit(R"({"rope_scaling":{"type":"linear","factor":2.0}})"), 8192);
  // Llama 3 states the stretched limit.
  EXPECT_EQ(
      parse(
          "LlamaForCausalLM",
          R"({"rope_scaling":{"type":"llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4,"original_max_position_embeddings":512}})")
          .max_position,
      4096);
  EXPECT_EQ(limit(R"({"rope_scaling":{"type":"yarn","factor":1e9,"original_max_position_embeddings":4096}})"), 1 << 30);
}

TEST(hf_rope, yarn_attention_factor_is_stated_or_follows_from_mscale) {
  const std::string head = R"({"rope_scaling":{"type":"yarn","factor":4.0,)";
  EXPECT_EQ(parse("LlamaForCausalLM", head + R"("attention_factor":1.5,"mscale":2,"mscale_all_dim":1}})").rope.attention_factor, 1.5);
  const auto factor = parse("LlamaForCausalLM", head + R"("mscale":2,"mscale_all_dim":1}})").rope.attention_factor;
  ASSERT_TRUE(factor);
  EXPECT_NEAR(*factor, 1.2772588722 / 1.1386294361, 1e-9);
}

TEST(hf_rope, unknown_types_and_bad_numbers_are_refused) {
  const auto rope_failure = [](const std::string& section) { return failure_of("LlamaForCausalLM", "{\"rope_scaling\":" + section + "}"); };
  for (const char* type : {"dynamic", "longrope", "su", "mrope", "Linear", ""}) {
    EXPECT_THAT(rope_failure(std::string(R"({"type":")") + type + R"(","factor":2})"), HasSubstr("unknown rope type")) << type;
  }
  EXPECT_THAT(rope_failure(R"({"factor":2})"), HasSubstr("no rope_type"));
  EXPECT_THAT(rope_failure(R"({"type":"linear"})"), HasSubstr("rope_scaling.factor: missing"));
  EXPECT_THAT(rope_failure(R"({"type":"linear","factor":0})"), HasSubstr("factor"));
  EXPECT_THAT(rope_failure(R"({"type":"linear","factor":"2"})"), HasSubstr("factor"));
  EXPECT_THAT(rope_failure(R"({"type":"yarn","factor":0.5})"), HasSubstr("factor"));
  EXPECT_THAT(rope_failure(R"({"type":"yarn"})"), HasSubstr("factor"));
  EXPECT_THAT(rope_failure(R"({"type":"yarn","factor":2,"truncate":false})"), HasSubstr("truncate"));
  EXPECT_THAT(rope_failure(R"({"type":"yarn","factor":2,"beta_fast":1,"beta_slow":32})"), HasSubstr("beta"));
  EXPECT_THAT(rope_failure(R"({"type":"llama3","factor":8,"low_freq_factor":4,"high_freq_factor":4})"),
              HasSubstr("low_freq_factor < high_freq_factor"));
  EXPECT_THAT(rope_failure(R"({"type":"llama3","factor":8})"), HasSubstr("low_freq_factor: missing"));
  EXPECT_THAT(rope_failure(R"({"full_attention":{"rope_type":"default"}})"), HasSubstr("per kind of layer"));
  EXPECT_THAT(rope_failure("3"), HasSubstr("expected an object"));
}

} // namespace
} // namespace troupe
