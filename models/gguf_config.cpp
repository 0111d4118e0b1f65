#include "models/gguf_config.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include "models/config_fields.hpp"
#include "models/load_check.hpp"
#include "models/vectors.hpp"

namespace troupe {

namespace {

constexpr double kLargest = 1e12;

const file_tensor* find_tensor(const std::vector<file_tensor>& tensors, std::string_view name) {
  auto it = std::find_if(tensors.begin(), tensors.end(), [&](const file_tensor& t) { return t.name == name; });
  return it == tensors.end() ? nullptr : &*it;
}

void refuse_unsupported(const config_fields& general, const config_fields& fields) {
  if (general.integer("split.count", 0, 65535).value_or(0) > 1) {
    general.fail("split.count", "the model is split over several files; join them first");
  }
  if (fields.integer("expert_count", 0, 65535).value_or(0) > 0) fields.fail("expert_count", "mixtures of experts are not supported");
  for (std::string_view key : {"attention.sliding_window_pattern", "attention.logit_softcapping", "attention.scale", "logit_scale"}) {
    if (fields.find(key)) fields.fail(key, "the key is not supported");
  }
}

void read_shapes(model_config& out, const config_fields& fields) {
  using namespace config_bounds;
  const auto take = [&](std::string_view key, std::int64_t most) {
    return static_cast<std::int32_t>(fields.required_integer(key, 1, most));
  };
  out.hidden_size = take("embedding_length", width);
  out.intermediate_size = take("feed_forward_length", width);
  out.num_layers = take("block_count", layers);
  out.num_heads = take("attention.head_count", heads);
  out.num_kv_heads = static_cast<std::int32_t>(fields.integer("attention.head_count_kv", 1, heads).value_or(out.num_heads));
  const auto key_length = fields.integer("attention.key_length", 1, head_dim);
  const auto value_length = fields.integer("attention.value_length", 1, head_dim);
  if (!key_length && out.hidden_size % out.num_heads != 0) {
    fields.fail("attention.key_length", "missing, and embedding_length does not divide by the number of heads");
  }
  out.head_dim = static_cast<std::int32_t>(key_length.value_or(out.hidden_size / out.num_heads));
  if (value_length && *value_length != out.head_dim) fields.fail("attention.value_length", "it differs from the length of keys");
  const auto epsilon = fields.number("attention.layer_norm_rms_epsilon", 0.0, 1.0);
  if (!epsilon) fields.fail("attention.layer_norm_rms_epsilon", "missing");
  out.norm_epsilon = static_cast<float>(*epsilon);
  if (const auto window = fields.integer("attention.sliding_window", 0, positions); window && *window > 0) {
    out.sliding_window = static_cast<std::int32_t>(*window);
  }
}

void read_yarn(rope_config& rope, const config_fields& fields) {
  rope.scaling = rope_scaling_kind::yarn;
  if (const auto mix = fields.number("rope.scaling.yarn_ext_factor", -1.0, kLargest); mix && *mix >= 0.0 && *mix != 1.0) {
    fields.fail("rope.scaling.yarn_ext_factor", "only 1 is supported");
  }
  if (const auto beta = fields.number("rope.scaling.yarn_beta_fast", 0.0, kLargest); beta && *beta != 0.0) rope.beta_fast = *beta;
  if (const auto beta = fields.number("rope.scaling.yarn_beta_slow", 0.0, kLargest); beta && *beta != 0.0) rope.beta_slow = *beta;
  const double whole_weight = fields.number("rope.scaling.yarn_log_multiplier", 0.0, kLargest).value_or(0.0);
  const double times = fields.number("rope.scaling.attn_factor", 0.0, kLargest).value_or(1.0);
  // yarn_attn_factor is config.json's attention_factor, as converters write it.
  const auto stated = fields.number("rope.scaling.yarn_attn_factor", 0.0, kLargest);
  if (stated || whole_weight != 0.0 || times != 1.0) {
    rope.attention_factor = times * (stated ? *stated : yarn_attention_factor(rope.factor, 1.0, whole_weight));
  }
}

void read_rope(model_config& out, const config_fields& fields, double stated_positions) {
  rope_config& rope = out.rope;
  rope.theta = fields.number("rope.freq_base", 0.0, kLargest).value_or(10000.0);
  rope.rotary_dim = static_cast<std::int32_t>(fields.integer("rope.dimension_count", 1, config_bounds::head_dim).value_or(out.head_dim));
  const std::string type = fields.string("rope.scaling.type").value_or("");
  auto factor = fields.number("rope.scaling.factor", 0.0, kLargest);
  if (factor && *factor == 0.0) factor.reset(); // 0 stands for "not scaled"
  const auto original = fields.number("rope.scaling.original_context_length", 0.0, kLargest);
  // Files older than rope.scaling.* have rope.scale_linear alone.
  const auto old_factor = fields.number("rope.scale_linear", 0.0, kLargest);
  if (type.empty() && !factor) factor = old_factor && *old_factor > 0.0 ? old_factor : std::nullopt;
  if (type == "none" || (type.empty() && !factor)) return;
  if (!factor) fields.fail("rope.scaling.factor", "missing");
  rope.factor = *factor;
  rope.original_max_position = original.value_or(0.0);
  if (type.empty() || type == "linear") {
    rope.scaling = *factor == 1.0 ? rope_scaling_kind::none : rope_scaling_kind::linear;
  } else if (type == "yarn") {
    if (rope.original_max_position == 0.0) rope.original_max_position = stated_positions;
    read_yarn(rope, fields);
  } else {
    fields.fail("rope.scaling.type", "unknown rope type " + printable(type) + " (none, linear and yarn are supported)");
  }
}

// Llama 3's scaling is stored as one divisor per pair of dimensions.
void read_frequency_divisors(rope_config& rope, const std::vector<file_tensor>& tensors, const std::string& file) {
  const file_tensor* tensor = find_tensor(tensors, "rope_freqs.weight");
  if (!tensor) return;
  if (tensor->shape != std::vector<std::int64_t>{rope.rotary_dim / 2}) {
    fail_load(file, tensor->name, "shape " + shape_text(tensor->shape) + ", expected [" + std::to_string(rope.rotary_dim / 2) + "]");
  }
  rope.frequency_divisors = to_floats(*tensor, file);
  for (float divisor : rope.frequency_divisors) {
    if (!(divisor > 0.0F && divisor < 1e9F)) fail_load(file, tensor->name, "a divisor is not a positive finite number");
  }
}

void read_tokens(model_config& out, const config_fields& general) {
  const std::int64_t last = out.vocab_size - 1;
  if (const auto bos = general.integer("tokenizer.ggml.bos_token_id", 0, last)) out.bos_token = static_cast<token_id>(*bos);
  // eot ends a turn and eom a message; generation stops at either.
  for (std::string_view key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    if (const auto id = general.integer(key, 0, last)) add_token(out.eos_tokens, *id);
  }
  const value* tokens = general.find("tokenizer.ggml.tokens");
  if (!tokens) return;
  if (!tokens->is_array()) general.fail("tokenizer.ggml.tokens", "expected an array");
  const value_array& texts = tokens->as_array();
  if (texts.size() > static_cast<std::size_t>(out.vocab_size)) {
    general.fail("tokenizer.ggml.tokens",
                 std::to_string(texts.size()) + " tokens, but token_embd.weight has " + std::to_string(out.vocab_size) + " rows");
  }
  // The key holds one id where generation_config.json lists several; these texts end a generation in every family that has them.
  constexpr std::array<std::string_view, 5> ends = {"<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"};
  constexpr std::int64_t control = 3; // tokenizer.ggml.token_type
  const value* types = general.find("tokenizer.ggml.token_type");
  if (!types || !types->is_array() || types->as_array().size() != texts.size()) return;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (types->as_array()[i] != value(control) || !texts[i].is_string()) continue;
    if (std::find(ends.begin(), ends.end(), texts[i].as_string()) != ends.end()) add_token(out.eos_tokens, static_cast<std::int64_t>(i));
  }
}

} // namespace

model_config parse_gguf_config(const value& metadata, const std::vector<file_tensor>& tensors, const std::string& file) {
  const config_fields general(metadata, file);
  const auto architecture = general.string("general.architecture");
  if (!architecture) general.fail("general.architecture", "missing");
  if (*architecture != "llama" && *architecture != "qwen2" && *architecture != "qwen3") {
    general.fail("general.architecture", "unknown architecture " + printable(*architecture) + " (llama, qwen2 and qwen3 are supported)");
  }
  const config_fields fields(metadata, file, *architecture + ".", true);
  refuse_unsupported(general, fields);
  model_config out;
  out.family = *architecture;
  read_shapes(out, fields);
  const file_tensor* embedding = find_tensor(tensors, "token_embd.weight");
  if (!embedding) fail_load(file, "token_embd.weight", "missing");
  if (embedding->shape.size() != 2 || embedding->shape[0] < 1 || embedding->shape[0] > config_bounds::vocab) {
    fail_load(file, "token_embd.weight",
              "shape " + shape_text(embedding->shape) + ", expected [vocabulary, " + std::to_string(out.hidden_size) + "]");
  }
  out.vocab_size = static_cast<std::int32_t>(embedding->shape[0]);
  out.tied_head = find_tensor(tensors, "output.weight") == nullptr;
  out.query_key_value_bias = *architecture == "qwen2" || find_tensor(tensors, "blk.0.attn_q.bias") != nullptr;
  out.output_bias = find_tensor(tensors, "blk.0.attn_output.bias") != nullptr;
  out.query_key_norm = *architecture == "qwen3";
  const std::int64_t stated = fields.required_integer("context_length", 1, config_bounds::positions);
  read_rope(out, fields, static_cast<double>(stated));
  // Converters permute the rows of Q and K in "llama" files so that pairs are neighbours.
  out.rope.interleaved = *architecture == "llama";
  read_frequency_divisors(out.rope, tensors, file);
  out.max_position = stretched_context(out.rope, stated);
  read_tokens(out, general);
  check_config(out, file);
  return out;
}

} // namespace troupe
