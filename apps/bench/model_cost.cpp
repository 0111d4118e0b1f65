#include "apps/bench/model_cost.hpp"

#include <algorithm>
#include <optional>

#include "models/cpu_executor.hpp"
#include "models/parameters.hpp"

namespace troupe::bench {
namespace {

bool is_embedding(const std::string& name) { return name == "model.embed_tokens.weight" || name == "token_embd.weight"; }

std::size_t bytes_as(const model_config& config, dtype type) {
  model_weights shapes;
  shapes.config = config;
  std::size_t total = 0;
  for (const parameter& p : list_parameters(shapes)) {
    if (is_embedding(p.hugging_face) && !config.tied_head) continue;
    const auto columns = static_cast<std::size_t>(p.columns);
    total += p.is_matrix() ? static_cast<std::size_t>(p.rows) * row_bytes(type, columns) : columns * sizeof(float);
  }
  return total;
}

std::size_t bytes_as_stored(const checkpoint& source) {
  std::size_t total = 0;
  for (const stored_tensor& t : source.tensors()) {
    if (!is_embedding(t.name) || source.config().tied_head) total += t.bytes;
  }
  return total;
}

// Positions that a row at `position` attends to in a layer, itself included.
std::int64_t seen(const model_config& c, std::int32_t layer, std::int64_t position) {
  const bool slides = c.sliding_window && layer >= c.first_sliding_layer;
  return slides ? std::min<std::int64_t>(position + 1, *c.sliding_window) : position + 1;
}

} // namespace

model_cost::model_cost(const checkpoint& source, std::optional<dtype> weight_type, dtype kv_type)
    : config_(source.config()),
      kv_type_(kv_type),
      weight_bytes_(weight_type || source.tensors().empty() ? bytes_as(source.config(), weight_type.value_or(dtype::bf16))
                                                            : bytes_as_stored(source)) {}

std::size_t model_cost::kv_bytes(std::int64_t position) const {
  const std::size_t per_layer = kv_bytes_per_token(config_, kv_type_) / static_cast<std::size_t>(config_.num_layers);
  std::size_t total = 0;
  for (std::int32_t layer = 0; layer < config_.num_layers; ++layer) {
    total += per_layer * static_cast<std::size_t>(seen(config_, layer, position));
  }
  return total;
}

double model_cost::linear_flops(std::int64_t tokens) const {
  const double hidden = config_.hidden_size, wide = config_.intermediate_size;
  const double queries = static_cast<double>(config_.num_heads) * config_.head_dim;
  const double keys = static_cast<double>(config_.num_kv_heads) * config_.head_dim;
  const double layer = hidden * (queries + 2 * keys) + queries * hidden + 3 * hidden * wide;
  return 2 * (layer * config_.num_layers * static_cast<double>(tokens) + hidden * config_.vocab_size);
}

double model_cost::attention_flops(std::int64_t tokens) const {
  double pairs = 0; // of a row and a position that it attends to, over all layers
  for (std::int32_t layer = 0; layer < config_.num_layers; ++layer) {
    const std::int64_t reach = seen(config_, layer, tokens); // the window, or more than any row's
    const double full = static_cast<double>(std::min(tokens, reach)), rest = static_cast<double>(tokens) - full;
    pairs += full * (full + 1) / 2 + rest * static_cast<double>(reach);
  }
  return 4 * pairs * config_.num_heads * config_.head_dim; // two products, two operations a multiply-add
}

} // namespace troupe::bench
