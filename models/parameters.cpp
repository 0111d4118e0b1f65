#include "models/parameters.hpp"

#include <string_view>
#include <utility>

namespace troupe {

namespace {

class listing {
 public:
  void matrix(std::string hugging_face, std::string gguf, std::int64_t rows, std::int64_t columns, weight_view& target) {
    items.push_back({std::move(hugging_face), std::move(gguf), rows, columns, &target});
  }
  void vector(std::string hugging_face, std::string gguf, std::int64_t size, std::vector<float>& target) {
    items.push_back({std::move(hugging_face), std::move(gguf), 1, size, &target});
  }

  std::vector<parameter> items;
};

void list_layer(listing& out, const model_config& config, std::int32_t index, layer_weights& layer) {
  const std::string hf = "model.layers." + std::to_string(index) + ".";
  const std::string gguf = "blk." + std::to_string(index) + ".";
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t queries = std::int64_t{config.num_heads} * config.head_dim;
  const std::int64_t keys = std::int64_t{config.num_kv_heads} * config.head_dim;
  const std::int64_t wide = config.intermediate_size;
  out.vector(hf + "input_layernorm.weight", gguf + "attn_norm.weight", hidden, layer.attention_norm);
  out.matrix(hf + "self_attn.q_proj.weight", gguf + "attn_q.weight", queries, hidden, layer.query);
  out.matrix(hf + "self_attn.k_proj.weight", gguf + "attn_k.weight", keys, hidden, layer.key);
  out.matrix(hf + "self_attn.v_proj.weight", gguf + "attn_v.weight", keys, hidden, layer.value);
  if (config.query_key_value_bias) {
    out.vector(hf + "self_attn.q_proj.bias", gguf + "attn_q.bias", queries, layer.query_bias);
    out.vector(hf + "self_attn.k_proj.bias", gguf + "attn_k.bias", keys, layer.key_bias);
    out.vector(hf + "self_attn.v_proj.bias", gguf + "attn_v.bias", keys, layer.value_bias);
  }
  if (config.query_key_norm) {
    out.vector(hf + "self_attn.q_norm.weight", gguf + "attn_q_norm.weight", config.head_dim, layer.query_norm);
    out.vector(hf + "self_attn.k_norm.weight", gguf + "attn_k_norm.weight", config.head_dim, layer.key_norm);
  }
  out.matrix(hf + "self_attn.o_proj.weight", gguf + "attn_output.weight", hidden, queries, layer.output);
  if (config.output_bias) out.vector(hf + "self_attn.o_proj.bias", gguf + "attn_output.bias", hidden, layer.output_bias);
  out.vector(hf + "post_attention_layernorm.weight", gguf + "ffn_norm.weight", hidden, layer.mlp_norm);
  out.matrix(hf + "mlp.gate_proj.weight", gguf + "ffn_gate.weight", wide, hidden, layer.gate);
  out.matrix(hf + "mlp.up_proj.weight", gguf + "ffn_up.weight", wide, hidden, layer.up);
  out.matrix(hf + "mlp.down_proj.weight", gguf + "ffn_down.weight", hidden, wide, layer.down);
}

} // namespace

std::vector<parameter> list_parameters(model_weights& weights) {
  const model_config& config = weights.config;
  weights.layers.resize(static_cast<std::size_t>(config.num_layers));
  listing out;
  out.matrix("model.embed_tokens.weight", "token_embd.weight", config.vocab_size, config.hidden_size, weights.embedding);
  for (std::int32_t i = 0; i < config.num_layers; ++i) list_layer(out, config, i, weights.layers[static_cast<std::size_t>(i)]);
  out.vector("model.norm.weight", "output_norm.weight", config.hidden_size, weights.final_norm);
  if (!config.tied_head) out.matrix("lm_head.weight", "output.weight", config.vocab_size, config.hidden_size, weights.head);
  return std::move(out.items);
}

} // namespace troupe
