// A dense decoder as plain data: shapes, and one view per parameter into memory that the checkpoint owns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/ids.hpp"
#include "core/weight_view.hpp"

namespace troupe {

enum class rope_scaling_kind : std::uint8_t { none, linear, llama3, yarn };

// Rotary embedding. Formulas: transformers/modeling_rope_utils.py; YaRN: arXiv 2309.00071.
struct rope_config {
  double theta = 10000.0;
  std::int32_t rotary_dim = 0; // leading dimensions of a head that rotate (head_dim unless partial)
  bool interleaved = false;    // pairs (2i, 2i+1), as in GGUF "llama" files; else (i, i + rotary_dim/2)
  rope_scaling_kind scaling = rope_scaling_kind::none;
  double factor = 1.0;
  double low_freq_factor = 1.0;           // llama3
  double high_freq_factor = 4.0;          // llama3
  double original_max_position = 0.0;     // llama3, yarn
  double beta_fast = 32.0;                // yarn
  double beta_slow = 1.0;                 // yarn
  std::optional<double> attention_factor; // yarn: scales cos and sin; none: 0.1 ln(factor) + 1
  std::vector<float> frequency_divisors;  // GGUF rope_freqs.weight: rotary_dim/2 divisors, or empty
};

struct model_config {
  std::string family;          // "llama", "mistral", "qwen2", "qwen3"
  std::int32_t vocab_size = 0; // rows of the embedding
  std::int32_t hidden_size = 0;
  std::int32_t intermediate_size = 0;
  std::int32_t num_layers = 0;
  std::int32_t num_heads = 0;
  std::int32_t num_kv_heads = 0;
  std::int32_t head_dim = 0; // need not be hidden_size / num_heads
  float norm_epsilon = 1e-5F;
  rope_config rope;
  std::int32_t max_position = 0;              // context the model was made for, scaling included
  std::optional<std::int32_t> sliding_window; // a row sees itself and this many - 1 positions before it
  std::int32_t first_sliding_layer = 0;       // with sliding_window: layers from here on slide (Qwen2's max_window_layers)
  bool tied_head = false;
  bool query_key_value_bias = false;
  bool output_bias = false;    // of the attention's output projection
  bool query_key_norm = false; // RMSNorm over each head's query and key before the rotation (Qwen3)
  std::optional<token_id> bos_token;
  std::vector<token_id> eos_tokens; // config.json and generation_config.json together
  // Of a rank's part (models/shard.hpp): so many heads, KV heads and rows of gate and up, the last ones, are zeros. They add nothing.
  std::int32_t padding_heads = 0;
  std::int32_t padding_kv_heads = 0;
  std::int32_t padding_width = 0;
};

// Vectors (norms, biases) are always f32. Optional ones are empty views or vectors.
struct layer_weights {
  std::vector<float> attention_norm;                                // [hidden]
  weight_view query;                                                // [heads * head_dim, hidden]
  weight_view key;                                                  // [kv_heads * head_dim, hidden]
  weight_view value;                                                // [kv_heads * head_dim, hidden]
  std::vector<float> query_bias, key_bias, value_bias, output_bias; // optional
  std::vector<float> query_norm, key_norm;                          // [head_dim], optional (Qwen3)
  weight_view output;                                               // [hidden, heads * head_dim]
  std::vector<float> mlp_norm;                                      // [hidden]
  weight_view gate, up;                                             // [intermediate, hidden]
  weight_view down;                                                 // [hidden, intermediate]
};

// Where weights come from, for those who keep them beyond this process.
struct weight_source {
  std::string origin;                             // the checkpoint's path, or what takes its place; empty: not known, and not to be kept
  std::string identity;                           // lines that tell these weights from others of that origin
  std::string part = "rank 0 of 1, stage 0 of 1"; // the rank's
  // Must be called before a matrix is read; more calls do nothing. Empty: the matrices can be read.
  std::function<void()> make;
};

struct model_weights {
  model_config config;
  weight_view embedding; // [vocab, hidden]
  std::vector<layer_weights> layers;
  std::vector<float> final_norm;       // [hidden]
  weight_view head;                    // [vocab, hidden]; the embedding when tied
  std::shared_ptr<const void> storage; // keeps the mapped files (or dummy memory) alive
  std::size_t total_bytes = 0;         // of all parameters as stored
  weight_source source;
};

} // namespace troupe
