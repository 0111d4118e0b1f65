#include "models/checkpoint.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>

#include "core/json.hpp"
#include "tests/models/file_builders.hpp"

namespace troupe {
namespace {

using test_files::as_bytes;
using test_files::load_failure;
using test_files::temporary_folder;
using testing::HasSubstr;

const std::filesystem::path kFixtures = std::filesystem::path(TROUPE_SOURCE_DIR) / "tests/fixtures/models";

// One tensor of a model to be written: F32 unless `type` says otherwise.
struct written_tensor {
  std::vector<std::int64_t> shape;
  std::string type = "F32";
};
using written_model = std::map<std::string, written_tensor>;

// hidden 8, 2 heads of 4, 1 KV head, 2 layers.
written_model tiny_llama(bool head) {
  written_model model = {{"model.embed_tokens.weight", {{10, 8}}}, {"model.norm.weight", {{8}}}};
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    model[layer + "input_layernorm.weight"] = model[layer + "post_attention_layernorm.weight"] = {{8}};
    model[layer + "self_attn.q_proj.weight"] = model[layer + "self_attn.o_proj.weight"] = {{8, 8}};
    model[layer + "self_attn.k_proj.weight"] = model[layer + "self_attn.v_proj.weight"] = {{4, 8}};
    model[layer + "mlp.gate_proj.weight"] = model[layer + "mlp.up_proj.weight"] = {{12, 8}};
    model[layer + "mlp.down_proj.weight"] = {{8, 12}};
  }
  if (head) model["lm_head.weight"] = {{10, 8}};
  return model;
}

std::string config_text(bool tied) {
  return std::string(
             R"({"architectures":["LlamaForCausalLM"],"hidden_size":8,"intermediate_size":12,"num_hidden_layers":2,"num_attention_heads":2,)") +
         R"("num_key_value_heads":1,"vocab_size":10,"max_position_embeddings":64,"tie_word_embeddings":)" + (tied ? "true}" : "false}");
}

std::string shape_json(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::int64_t dim : shape) text += (text.size() > 1 ? "," : "") + std::to_string(dim);
  return text + "]";
}

// Elements count up from 0.5 in steps of 0.25, so that none is zero and all are exact in every type.
std::string file_of(const written_model& model) {
  std::string header = "{";
  std::string data;
  for (const auto& [name, tensor] : model) {
    const std::size_t begin = data.size();
    std::int64_t count = 1;
    for (std::int64_t dim : tensor.shape) count *= dim;
    for (std::int64_t i = 0; i < count; ++i) {
      const float number = 0.5F + 0.25F * static_cast<float>(i % 16);
      if (tensor.type == "F32") test_files::append_number(data, number);
      if (tensor.type == "BF16") test_files::append_number(data, static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(number) >> 16));
      if (tensor.type == "I32") test_files::append_number(data, static_cast<std::int32_t>(i));
      if (tensor.type == "U8" || tensor.type == "F8_E4M3") data += static_cast<char>(i);
    }
    header += std::string(header.size() > 1 ? "," : "") + "\"" + name + "\":{\"dtype\":\"" + tensor.type +
              "\",\"shape\":" + shape_json(tensor.shape) + ",\"data_offsets\":[" + std::to_string(begin) + "," +
              std::to_string(data.size()) + "]}";
  }
  return test_files::safetensors(header + "}", data);
}

model_weights load_bytes(const std::string& file, bool tied = false) {
  return open_safetensors_bytes(config_text(tied), as_bytes(file), "tiny")->load();
}

TEST(checkpoint, tied_without_a_head_shares_the_embedding) {
  const std::string file = file_of(tiny_llama(false));
  const model_weights weights = load_bytes(file, true);
  EXPECT_EQ(weights.head.data, weights.embedding.data);
  EXPECT_EQ(weights.head.rows, 10);
}

TEST(checkpoint, tied_with_a_head_in_the_file_shares_the_embedding) {
  const std::string file = file_of(tiny_llama(true));
  const model_weights weights = load_bytes(file, true);
  EXPECT_EQ(weights.head.data, weights.embedding.data);
}

TEST(checkpoint, untied_with_a_head_takes_the_head) {
  const std::string file = file_of(tiny_llama(true));
  const model_weights weights = load_bytes(file);
  EXPECT_NE(weights.head.data, weights.embedding.data);
  EXPECT_TRUE(weights.head);
}

TEST(checkpoint, untied_without_a_head_is_an_error_that_names_it) {
  const std::string file = file_of(tiny_llama(false));
  EXPECT_EQ(load_failure([&] { load_bytes(file); }), "tiny: lm_head.weight: missing");
}

TEST(checkpoint, every_parameter_that_is_missing_is_named) {
  for (const auto& [name, tensor] : tiny_llama(true)) {
    written_model model = tiny_llama(true);
    model.erase(name);
    const std::string file = file_of(model);
    EXPECT_EQ(load_failure([&] { load_bytes(file); }), "tiny: " + name + ": missing");
  }
}

TEST(checkpoint, every_parameter_of_a_wrong_shape_is_named) {
  for (const auto& [name, tensor] : tiny_llama(true)) {
    written_model model = tiny_llama(true);
    model[name].shape.front() += 1;
    const std::string file = file_of(model);
    EXPECT_THAT(load_failure([&] { load_bytes(file); }), testing::StartsWith("tiny: " + name + ": shape ["));
  }
  // A transposed matrix has the right number of bytes.
  written_model model = tiny_llama(true);
  model["model.layers.1.mlp.down_proj.weight"].shape = {12, 8};
  const std::string file = file_of(model);
  EXPECT_THAT(load_failure([&] { load_bytes(file); }), HasSubstr("down_proj.weight: shape [12, 8], but the config asks for [8, 12]"));
}

TEST(checkpoint, weights_of_types_no_kernel_reads_are_refused) {
  for (const char* type : {"I32", "F8_E4M3", "U8"}) {
    written_model model = tiny_llama(true);
    model["model.layers.0.mlp.up_proj.weight"].type = type;
    std::string file = file_of(model);
    EXPECT_THAT(load_failure([&] { load_bytes(file); }), HasSubstr(std::string("up_proj.weight: type ") + type)) << type;
    model = tiny_llama(true);
    model["model.norm.weight"].type = type;
    file = file_of(model);
    EXPECT_THAT(load_failure([&] { load_bytes(file); }), HasSubstr(std::string("model.norm.weight: type ") + type)) << type;
  }
}

TEST(checkpoint, a_tensor_the_model_would_not_use_is_refused_but_markers_are_not) {
  written_model model = tiny_llama(true);
  model["model.layers.0.self_attn.rotary_emb.inv_freq"] = {{2}};
  model["model.layers.0.mlp.up_proj.input_scale"] = {{0}};
  std::string file = file_of(model);
  EXPECT_EQ(load_failure([&] { load_bytes(file); }), "");
  model["model.layers.0.mlp.up_proj.bias"] = {{12}};
  file = file_of(model);
  EXPECT_THAT(load_failure([&] { load_bytes(file); }), HasSubstr("mlp.up_proj.bias"));
}

TEST(checkpoint, vectors_of_any_float_type_become_floats) {
  written_model model = tiny_llama(true);
  model["model.norm.weight"].type = "BF16";
  const std::string file = file_of(model);
  const model_weights weights = load_bytes(file);
  ASSERT_EQ(weights.final_norm.size(), 8U);
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(weights.final_norm[i], 0.5F + 0.25F * static_cast<float>(i));
}

TEST(checkpoint, matrices_that_the_file_leaves_unaligned_are_still_aligned_after_load) {
  written_model model = tiny_llama(true);
  model["a.rotary_emb.inv_freq"] = {{1}, "U8"}; // sorts first and shifts all others by one byte
  const std::string file = file_of(model);
  const model_weights weights = load_bytes(file);
  for (const weight_view& view : {weights.embedding, weights.head, weights.layers[1].down}) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(view.data) % alignof(float), 0U);
    EXPECT_EQ(reinterpret_cast<const float*>(view.data)[1], 0.75F);
  }
}

// A whole GGUF model of one layer, every matrix Q8_0 with 32 columns or rows; `norm_type` is that of the final norm.
std::string quantised_gguf(std::uint32_t norm_type) {
  constexpr std::uint32_t f32 = 0;
  constexpr std::uint32_t q8_0 = 8;
  struct entry {
    std::string name;
    std::vector<std::uint64_t> dims;
    std::uint32_t type;
  };
  std::vector<entry> entries = {{"token_embd.weight", {32, 10}, q8_0},
                                {"output_norm.weight", {32}, norm_type},
                                {"blk.0.attn_norm.weight", {32}, f32},
                                {"blk.0.ffn_norm.weight", {32}, f32}};
  for (const char* name : {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"}) {
    entries.push_back({std::string("blk.0.") + name + ".weight", {32, 32}, q8_0});
  }
  test_files::gguf_builder file(entries.size(), 7);
  file.text_pair("general.architecture", "llama")
      .u32("llama.embedding_length", 32)
      .u32("llama.feed_forward_length", 32)
      .u32("llama.block_count", 1);
  file.u32("llama.context_length", 64).u32("llama.attention.head_count", 2).f32("llama.attention.layer_norm_rms_epsilon", 1e-5F);
  std::uint64_t offset = 0;
  for (const entry& item : entries) {
    file.tensor(item.name, item.dims, item.type, offset);
    std::uint64_t rows = item.dims.size() > 1 ? item.dims[1] : 1;
    offset += (rows * (item.type == q8_0 ? 34 : 128) + 31) / 32 * 32;
  }
  return file.pad().zeros(offset).text;
}

TEST(checkpoint, quantised_matrices_bind_and_quantised_norms_are_refused) {
  const std::string good = quantised_gguf(0);
  const model_weights weights = open_gguf_bytes(as_bytes(good), "tiny.gguf")->load();
  EXPECT_EQ(weights.layers[0].down.type, dtype::q8_0);
  EXPECT_EQ(weights.head.data, weights.embedding.data);
  const std::string bad = quantised_gguf(8);
  EXPECT_EQ(load_failure([&] { open_gguf_bytes(as_bytes(bad), "tiny.gguf")->load(); }),
            "tiny.gguf: output_norm.weight: type Q8_0, expected F32, F16 or BF16 for a vector");
}

TEST(checkpoint, a_norm_that_is_not_finite_is_refused) {
  std::string file = file_of(tiny_llama(true));
  const float bad = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(file.data() + file.size() - sizeof bad, &bad, sizeof bad); // "model.norm.weight" sorts last
  EXPECT_THAT(load_failure([&] { load_bytes(file); }), HasSubstr("model.norm.weight: element 7 is not a finite number"));
}

class folder_test : public testing::Test {
 protected:
  void SetUp() override { folder.write("config.json", config_text(false)); }

  // Splits the model over two shards by layer; `index` can be changed before it is written.
  void write_shards(const std::function<void(value_object&)>& change = [](value_object&) {}) {
    written_model first;
    written_model second;
    value_object map;
    for (const auto& [name, tensor] : tiny_llama(true)) {
      const bool late = name.find("layers.1.") != std::string::npos;
      (late ? second : first)[name] = tensor;
      map.set(name, late ? "model-00002-of-00002.safetensors" : "model-00001-of-00002.safetensors");
    }
    folder.write("model-00001-of-00002.safetensors", file_of(first));
    folder.write("model-00002-of-00002.safetensors", file_of(second));
    change(map);
    value_object index;
    index.set("weight_map", value(std::move(map)));
    folder.write("model.safetensors.index.json", json::dump(value(std::move(index))));
  }

  model_weights load() const { return open_checkpoint(folder.path())->load(); }
  std::string failure() const {
    return load_failure([&] { load(); });
  }

  temporary_folder folder;
};

TEST_F(folder_test, a_single_file_loads) {
  folder.write("model.safetensors", file_of(tiny_llama(true)));
  EXPECT_EQ(load().layers.size(), 2U);
}

TEST_F(folder_test, shards_load) {
  write_shards();
  const auto source = open_checkpoint(folder.path());
  EXPECT_EQ(source->tensors().size(), tiny_llama(true).size());
  EXPECT_TRUE(source->load().layers[1].gate);
}

TEST_F(folder_test, weights_outlive_the_checkpoint_that_made_them) {
  write_shards();
  model_weights weights = load();
  EXPECT_EQ(reinterpret_cast<const float*>(weights.layers[1].up.data)[0], 0.5F);
}

TEST_F(folder_test, a_missing_shard_is_named) {
  write_shards();
  std::filesystem::remove(folder.path() / "model-00002-of-00002.safetensors");
  EXPECT_THAT(failure(), HasSubstr("model-00002-of-00002.safetensors: the shard is missing"));
}

TEST_F(folder_test, a_tensor_that_its_shard_lacks_is_named) {
  write_shards([](value_object& map) { map.set("model.layers.0.mlp.up_proj.weight", "model-00002-of-00002.safetensors"); });
  EXPECT_THAT(failure(), HasSubstr("model-00002-of-00002.safetensors: model.layers.0.mlp.up_proj.weight: missing"));
}

TEST_F(folder_test, files_outside_the_index_are_ignored) {
  write_shards();
  written_model stray;
  for (const auto& [name, tensor] : tiny_llama(true)) stray[name] = {{1}};
  folder.write("consolidated.safetensors", file_of(stray));
  folder.write("stray.safetensors", "not even a header");
  EXPECT_EQ(failure(), "");
}

TEST_F(folder_test, a_consolidated_file_beside_the_single_one_is_ignored) {
  folder.write("model.safetensors", file_of(tiny_llama(true)));
  folder.write("consolidated.safetensors", "not even a header");
  EXPECT_EQ(failure(), "");
}

TEST_F(folder_test, two_files_without_an_index_are_refused) {
  folder.write("a.safetensors", file_of(tiny_llama(true)));
  EXPECT_EQ(failure(), "");
  folder.write("b.safetensors", file_of(tiny_llama(true)));
  EXPECT_THAT(failure(), HasSubstr("several safetensors files (a.safetensors, b.safetensors"));
}

TEST_F(folder_test, an_index_cannot_name_files_elsewhere) {
  for (const char* name : {"../model.safetensors", "/etc/passwd", "..", "", "sub/x.safetensors"}) {
    write_shards([&](value_object& map) { map.set("model.norm.weight", name); });
    EXPECT_THAT(failure(), HasSubstr("model.norm.weight: its file is not a plain file name")) << name;
  }
  folder.write("model.safetensors.index.json", "{\"weight_map\":[]}");
  EXPECT_THAT(failure(), HasSubstr("weight_map"));
  folder.write("model.safetensors.index.json", "{");
  EXPECT_THAT(failure(), HasSubstr("model.safetensors.index.json: "));
}

TEST_F(folder_test, folders_without_weights_or_config_are_refused) {
  EXPECT_THAT(failure(), HasSubstr("no safetensors file"));
  std::filesystem::remove(folder.path() / "config.json");
  EXPECT_THAT(failure(), HasSubstr("config.json: cannot open"));
}

TEST_F(folder_test, a_folder_of_configs_alone_is_enough_for_dummy_weights) {
  const auto source = open_checkpoint_without_weights(folder.path());
  EXPECT_EQ(make_dummy_weights(source->config(), dtype::f32, 1).layers.size(), 2U);
  EXPECT_TRUE(source->tensors().empty());
  EXPECT_THAT(load_failure([&] { source->load(); }), HasSubstr("model.embed_tokens.weight: missing"));
}

TEST_F(folder_test, a_cut_off_file_is_refused) {
  const std::string file = file_of(tiny_llama(true));
  folder.write("model.safetensors", std::string_view(file).substr(0, file.size() - 1));
  EXPECT_THAT(failure(), HasSubstr("model.safetensors: "));
  folder.write("model.safetensors", "");
  EXPECT_THAT(failure(), HasSubstr("the file is empty"));
}

TEST_F(folder_test, paths_that_are_no_checkpoint_are_refused) {
  folder.write("x.safetensors", file_of(tiny_llama(true)));
  EXPECT_THAT(load_failure([&] { open_checkpoint(folder.path() / "x.safetensors"); }), HasSubstr("give the folder"));
  EXPECT_THAT(load_failure([&] { open_checkpoint(folder.path() / "none"); }), HasSubstr("no such file"));
  folder.write("x.txt", "hello");
  EXPECT_THAT(load_failure([&] { open_checkpoint(folder.path() / "x.txt"); }), HasSubstr("neither a model folder nor a GGUF file"));
}

TEST(fixtures, checkpoints_of_every_family_load_whole) {
  for (const char* name : {"llama3-gqa", "llama-linear-tied", "mistral-window", "qwen2-bias-tied", "qwen3-yarn"}) {
    const auto source = open_checkpoint(kFixtures / name);
    const model_weights weights = source->load();
    const model_config& config = weights.config;
    EXPECT_EQ(weights.layers.size(), static_cast<std::size_t>(config.num_layers)) << name;
    EXPECT_EQ(config.tied_head, weights.head.data == weights.embedding.data) << name;
    for (const layer_weights& layer : weights.layers) {
      EXPECT_EQ(layer.query_bias.empty(), !config.query_key_value_bias) << name;
      EXPECT_EQ(layer.output_bias.empty(), !config.output_bias) << name;
      EXPECT_EQ(layer.key_norm.size(), config.query_key_norm ? static_cast<std::size_t>(config.head_dim) : 0U) << name;
      EXPECT_TRUE(layer.query && layer.key && layer.value && layer.output && layer.gate && layer.up && layer.down) << name;
    }
    std::size_t stored = 0;
    for (const stored_tensor& tensor : source->tensors()) stored += tensor.bytes;
    EXPECT_EQ(weights.total_bytes, stored) << name;
  }
}

TEST(fixtures, configs_read_as_transformers_reads_them) {
  const model_config qwen2 = open_checkpoint(kFixtures / "qwen2-bias-tied")->config();
  EXPECT_EQ(qwen2.sliding_window, 24);
  EXPECT_EQ(qwen2.first_sliding_layer, 1);
  EXPECT_EQ(qwen2.eos_tokens, (std::vector<token_id>{2, 7}));
  const model_config qwen3 = open_checkpoint(kFixtures / "qwen3-yarn")->config();
  EXPECT_EQ(qwen3.head_dim, 24);
  EXPECT_EQ(qwen3.rope.scaling, rope_scaling_kind::yarn);
  EXPECT_EQ(qwen3.max_position, 128);
  EXPECT_EQ(open_checkpoint(kFixtures / "mistral-window")->config().sliding_window, 16);
  EXPECT_EQ(open_checkpoint(kFixtures / "llama-linear-tied")->config().rope.scaling, rope_scaling_kind::linear);
}

const float* row(const weight_view& view, std::int64_t index) { return reinterpret_cast<const float*>(view.data) + index * view.columns; }

TEST(fixtures, a_gguf_file_says_the_same_as_the_folder_it_was_made_from) {
  const model_weights folder = open_checkpoint(kFixtures / "qwen3-yarn")->load();
  const model_weights file = open_checkpoint(kFixtures / "qwen3-yarn.gguf")->load();
  EXPECT_EQ(file.config.head_dim, folder.config.head_dim);
  EXPECT_EQ(file.config.max_position, folder.config.max_position);
  EXPECT_EQ(file.config.rope.scaling, rope_scaling_kind::yarn);
  EXPECT_EQ(file.config.rope.factor, folder.config.rope.factor);
  EXPECT_EQ(file.config.rope.original_max_position, folder.config.rope.original_max_position);
  EXPECT_EQ(file.config.norm_epsilon, folder.config.norm_epsilon);
  EXPECT_EQ(file.final_norm, folder.final_norm);
  for (std::size_t i = 0; i < folder.layers.size(); ++i) {
    const layer_weights& a = folder.layers[i];
    const layer_weights& b = file.layers[i];
    EXPECT_EQ(a.attention_norm, b.attention_norm);
    EXPECT_EQ(a.mlp_norm, b.mlp_norm);
    EXPECT_EQ(a.query_norm, b.query_norm);
    EXPECT_EQ(a.key_norm, b.key_norm);
    for (auto member : {&layer_weights::query, &layer_weights::key, &layer_weights::value, &layer_weights::output, &layer_weights::gate,
                        &layer_weights::up, &layer_weights::down}) {
      const weight_view& x = a.*member;
      const weight_view& y = b.*member;
      ASSERT_EQ(x.rows * x.columns, y.rows * y.columns);
      EXPECT_EQ(std::memcmp(x.data, y.data, static_cast<std::size_t>(x.rows * x.columns) * sizeof(float)), 0);
    }
  }
}

TEST(fixtures, a_llama_gguf_file_has_rotary_pairs_as_neighbours) {
  const model_weights folder = open_checkpoint(kFixtures / "llama3-gqa")->load();
  const model_weights file = open_checkpoint(kFixtures / "llama3-gqa.gguf")->load();
  EXPECT_TRUE(file.config.rope.interleaved);
  EXPECT_EQ(file.config.rope.frequency_divisors.size(), 8U);
  EXPECT_EQ(file.config.rope.frequency_divisors.front(), 1.0F);
  EXPECT_EQ(file.config.rope.frequency_divisors.back(), 8.0F);
  const std::int64_t half = folder.config.head_dim / 2;
  for (std::int64_t head = 0; head < folder.config.num_kv_heads; ++head) {
    for (std::int64_t i = 0; i < folder.config.head_dim; ++i) {
      const std::int64_t twin = head * 2 * half + (i < half ? 2 * i : 2 * (i - half) + 1);
      EXPECT_EQ(row(folder.layers[0].key, head * 2 * half + i)[5], row(file.layers[0].key, twin)[5]);
    }
  }
}

TEST(fixtures, a_gguf_file_in_f16_is_tied_and_biased) {
  const model_weights file = open_checkpoint(kFixtures / "qwen2-bias-tied-f16.gguf")->load();
  EXPECT_TRUE(file.config.tied_head);
  EXPECT_EQ(file.embedding.type, dtype::f16);
  EXPECT_EQ(file.layers[2].value_bias, open_checkpoint(kFixtures / "qwen2-bias-tied")->load().layers[2].value_bias);
}

// Runs where the environment names a real file, as deploy scripts have it after fetching the model.
TEST(real_gguf, opens_and_loads_whole) {
  const char* path = std::getenv("TROUPE_TEST_GGUF");
  if (!path) GTEST_SKIP() << "TROUPE_TEST_GGUF names no file";
  const auto source = open_checkpoint(path);
  EXPECT_EQ(source->format(), checkpoint_format::gguf);
  const model_weights weights = source->load();
  EXPECT_EQ(weights.layers.size(), static_cast<std::size_t>(source->config().num_layers));
  EXPECT_FALSE(source->config().eos_tokens.empty());
  EXPECT_GT(weights.total_bytes, std::size_t{1} << 20);
}

} // namespace
} // namespace troupe
