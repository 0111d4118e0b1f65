#include "models/hf_config.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>

#include "models/config_fields.hpp"
#include "models/load_check.hpp"

namespace troupe {

namespace {

enum class bias_rule : std::uint8_t { never, query_key_value, as_configured };

struct family_rules {
  std::string_view architecture;
  std::string_view family; // also "model_type"
  bias_rule biases;
  bool query_key_norm;
  std::int64_t default_kv_heads; // when the key is absent; 0: as many as heads
  std::int64_t default_head_dim; // likewise; 0: hidden / heads
};

constexpr std::array<family_rules, 4> kFamilies = {{
    {"LlamaForCausalLM", "llama", bias_rule::as_configured, false, 0, 0},
    {"MistralForCausalLM", "mistral", bias_rule::never, false, 8, 0},
    {"Qwen2ForCausalLM", "qwen2", bias_rule::query_key_value, false, 32, 0},
    {"Qwen3ForCausalLM", "qwen3", bias_rule::as_configured, true, 32, 128},
}};

const family_rules& find_family(const config_fields& fields) {
  const value* list = fields.find("architectures");
  if (list && list->is_array() && !list->as_array().empty()) {
    const value& first = list->as_array().front();
    if (!first.is_string()) fields.fail("architectures", "expected strings");
    for (const family_rules& rules : kFamilies) {
      if (rules.architecture == first.as_string()) return rules;
    }
    fields.fail("architectures", "unknown architecture " + printable(first.as_string()));
  }
  const auto model_type = fields.string("model_type");
  if (!model_type) fields.fail("architectures", "missing");
  for (const family_rules& rules : kFamilies) {
    if (rules.family == *model_type) return rules;
  }
  fields.fail("model_type", "unknown model type " + printable(*model_type));
}

void refuse_unsupported(const config_fields& fields) {
  const auto activation = fields.string("hidden_act");
  if (activation && *activation != "silu" && *activation != "swish") {
    fields.fail("hidden_act", "activation " + printable(*activation) + " is not supported (silu is)");
  }
  if (fields.boolean("mlp_bias").value_or(false)) fields.fail("mlp_bias", "biases in the MLP are not supported");
  if (fields.find("quantization_config")) fields.fail("quantization_config", "quantised Hugging Face checkpoints are not supported");
}

void read_shapes(model_config& out, const config_fields& fields, const family_rules& rules) {
  using namespace config_bounds;
  const auto take = [&](std::string_view key, std::int64_t most) {
    return static_cast<std::int32_t>(fields.required_integer(key, 1, most));
  };
  out.vocab_size = take("vocab_size", vocab);
  out.hidden_size = take("hidden_size", width);
  out.intermediate_size = take("intermediate_size", width);
  out.num_layers = take("num_hidden_layers", layers);
  out.num_heads = take("num_attention_heads", heads);
  if (fields.has_null("num_key_value_heads")) { // null is not absence: every head has its own keys then
    out.num_kv_heads = out.num_heads;
  } else if (fields.find("num_key_value_heads")) {
    out.num_kv_heads = take("num_key_value_heads", heads);
  } else {
    out.num_kv_heads = rules.default_kv_heads != 0 ? static_cast<std::int32_t>(rules.default_kv_heads) : out.num_heads;
  }
  if (const auto stated = fields.integer("head_dim", 1, head_dim)) {
    out.head_dim = static_cast<std::int32_t>(*stated);
  } else if (rules.default_head_dim != 0) {
    out.head_dim = static_cast<std::int32_t>(rules.default_head_dim);
  } else {
    if (out.hidden_size % out.num_heads != 0)
      fields.fail("hidden_size", "it does not divide by num_attention_heads, and there is no head_dim");
    out.head_dim = out.hidden_size / out.num_heads;
  }
  out.norm_epsilon = static_cast<float>(fields.number("rms_norm_eps", 0.0, 1.0).value_or(1e-6));
}

// Newer files list each layer's kind; what we can run is full layers first, then sliding ones. None: no layer slides.
std::optional<std::int32_t> first_sliding(const config_fields& fields, const value& kinds, std::int32_t layers) {
  if (!kinds.is_array() || kinds.as_array().size() != static_cast<std::size_t>(layers)) {
    fields.fail("layer_types", "expected an array with one entry per layer");
  }
  std::optional<std::int32_t> first;
  for (std::int32_t i = 0; i < layers; ++i) {
    const value& kind = kinds.as_array()[static_cast<std::size_t>(i)];
    const bool sliding = kind == value("sliding_attention");
    if (!sliding && kind != value("full_attention")) fields.fail("layer_types", "unknown kind of layer");
    if (!sliding && first) fields.fail("layer_types", "full layers after sliding ones are not supported");
    if (sliding && !first) first = i;
  }
  return first;
}

void read_sliding_window(model_config& out, const config_fields& fields) {
  constexpr std::int64_t default_window = 4096;
  if (out.family == "llama") return; // transformers gives Llama no window, whatever the file says
  const value* kinds = fields.find("layer_types");
  if (out.family == "mistral") {
    // Absent is the default; null is none. That difference is why this looks past config_fields::find.
    if (!fields.has_null("sliding_window")) {
      out.sliding_window =
          static_cast<std::int32_t>(fields.integer("sliding_window", 1, config_bounds::positions).value_or(default_window));
    }
    if (kinds && out.sliding_window && first_sliding(fields, *kinds, out.num_layers) != 0) {
      fields.fail("layer_types", "Mistral layers without the sliding window are not supported");
    }
    return;
  }
  if (!fields.boolean("use_sliding_window").value_or(false) || fields.has_null("sliding_window")) return;
  const auto window = fields.integer("sliding_window", 1, config_bounds::positions).value_or(default_window);
  const auto first =
      kinds ? first_sliding(fields, *kinds, out.num_layers)
            : std::optional(static_cast<std::int32_t>(fields.integer("max_window_layers", 0, config_bounds::positions).value_or(28)));
  if (!first || *first >= out.num_layers) return;
  out.sliding_window = static_cast<std::int32_t>(window);
  out.first_sliding_layer = *first;
}

void read_tokens(model_config& out, const config_fields& fields, const value& generation, const std::string& file) {
  const std::int64_t last = out.vocab_size - 1;
  const config_fields generation_fields(generation, std::filesystem::path(file).replace_filename("generation_config.json").string());
  if (const auto bos = fields.integer("bos_token_id", 0, last)) out.bos_token = static_cast<token_id>(*bos);
  for (std::int64_t id : fields.integers("eos_token_id", 0, last)) add_token(out.eos_tokens, id);
  for (std::int64_t id : generation_fields.integers("eos_token_id", 0, last)) add_token(out.eos_tokens, id);
}

} // namespace

model_config parse_hf_config(const value& config, const value& generation_config, const std::string& file) {
  if (!config.is_object()) fail_load(file, "", "not a JSON object");
  const config_fields fields(config, file);
  const family_rules& rules = find_family(fields);
  refuse_unsupported(fields);
  model_config out;
  out.family = rules.family;
  read_shapes(out, fields, rules);
  const bool configured = rules.biases == bias_rule::as_configured && fields.boolean("attention_bias").value_or(false);
  out.query_key_value_bias = configured || rules.biases == bias_rule::query_key_value;
  out.output_bias = configured;
  out.query_key_norm = rules.query_key_norm;
  out.tied_head = fields.boolean("tie_word_embeddings").value_or(false);
  const std::int64_t stated = fields.required_integer("max_position_embeddings", 1, config_bounds::positions);
  out.rope = parse_hf_rope(config, out.head_dim, stated, file);
  out.max_position = stretched_context(out.rope, stated);
  read_sliding_window(out, fields);
  read_tokens(out, fields, generation_config, file);
  check_config(out, file);
  return out;
}

} // namespace troupe
