#include "models/cpu_model.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/embedding.hpp"
#include "kernels/rms_norm.hpp"
#include "kernels/swiglu.hpp"
#include "models/rope_frequencies.hpp"

namespace troupe {
namespace {

cpu::aligned_buffer<float> rows_of(std::int32_t rows, std::int64_t width) {
  return cpu::aligned_buffer<float>(static_cast<std::size_t>(rows) * static_cast<std::size_t>(width));
}

rope_table make_rope_table(const rope_config& config) {
  rope_spectrum spectrum = rope_frequencies(config);
  return {std::move(spectrum.frequencies), spectrum.magnitude};
}

} // namespace

cpu_model::cpu_model(std::shared_ptr<const model_weights> weights, const cpu_model_shape& shape, const std::optional<keeper::access>& keep)
    : weights_(std::move(weights)),
      shape_(shape),
      pool_(shape.threads),
      rope_(make_rope_table(config().rope)),
      packed_(*weights_, keep, pool_),
      kv_({shape.kv_type, shape.block_size, config().num_kv_heads, config().head_dim}, config().num_layers, shape.num_blocks),
      query_width_(std::int64_t{config().num_heads} * config().head_dim),
      kv_width_(std::int64_t{config().num_kv_heads} * config().head_dim),
      hidden_(rows_of(shape.max_rows, config().hidden_size)),
      normed_(rows_of(shape.max_rows, config().hidden_size)),
      qkv_(rows_of(shape.max_rows, query_width_ + 2 * kv_width_)),
      attended_(rows_of(shape.max_rows, query_width_)),
      gate_up_(rows_of(shape.max_rows, 2 * std::int64_t{config().intermediate_size})),
      gated_(rows_of(shape.max_rows, config().intermediate_size)),
      head_input_(rows_of(shape.head_rows, config().hidden_size)),
      logits_(rows_of(shape.head_rows, packed_.head().rows())) {}

void cpu_model::forward(const forward_batch& batch) {
  const std::int64_t rows = static_cast<std::int64_t>(batch.tokens.size());
  if (rows == 0) return;
  const std::int64_t positions = std::int64_t{*std::max_element(batch.positions.begin(), batch.positions.end())} + 1;
  if (positions > rope_.size()) rope_.reserve(std::max(positions, std::min<std::int64_t>(2 * rope_.size(), config().max_position)));
  cpu::split_attention(batch.spans, config().num_heads, config().num_kv_heads, units_);
  cpu::embedding(pool_, {packed_.embedding(), batch.tokens.data(), rows, hidden_.data(), config().hidden_size});
  for (std::size_t i = 0; i < packed_.layers().size(); ++i) {
    attention_block(batch, i);
    mlp_block(rows, i);
    if (batch.after_layer) batch.after_layer(hidden_.data());
  }
}

// hidden += output(attention(rope(norm(qkv(norm(hidden))))))
void cpu_model::attention_block(const forward_batch& batch, std::size_t index) {
  const model_config& c = config();
  const layer_weights& w = weights_->layers[index];
  const std::int64_t rows = static_cast<std::int64_t>(batch.tokens.size());
  const std::int64_t width = query_width_ + 2 * kv_width_;
  float* const query = qkv_.data();
  float* const key = query + query_width_;
  cpu::rms_norm(pool_, {hidden_.data(), c.hidden_size, normed_.data(), c.hidden_size, rows, 1, c.hidden_size, w.attention_norm.data(),
                        c.norm_epsilon});
  packed_.layers()[index].qkv.apply(pool_, normed_.data(), c.hidden_size, rows, query, width);
  if (!w.query_norm.empty()) {
    cpu::rms_norm(pool_, {query, width, query, width, rows, c.num_heads, c.head_dim, w.query_norm.data(), c.norm_epsilon});
  }
  if (!w.key_norm.empty()) {
    cpu::rms_norm(pool_, {key, width, key, width, rows, c.num_kv_heads, c.head_dim, w.key_norm.data(), c.norm_epsilon});
  }
  const rope_pairing pairing = c.rope.interleaved ? rope_pairing::interleaved : rope_pairing::halves;
  cpu::rope(pool_, {query, width, rows, c.num_heads + c.num_kv_heads, c.head_dim, batch.positions.data(), rope_.view(), pairing});
  const kv_layer_view kv = kv_.layer(static_cast<std::int32_t>(index));
  cpu::kv_write(pool_, {key, key + kv_width_, width, batch.spans, kv});
  const bool slides = c.sliding_window && static_cast<std::int32_t>(index) >= c.first_sliding_layer;
  const float scale = 1.0F / std::sqrt(static_cast<float>(c.head_dim));
  cpu::attention(
      pool_, {query, width, attended_.data(), query_width_, c.num_heads, scale, slides ? *c.sliding_window : 0, batch.spans, units_, kv});
  packed_.layers()[index].output.apply(pool_, attended_.data(), query_width_, rows, hidden_.data(), c.hidden_size, true);
}

// hidden += down(swiglu(gate_up(norm(hidden))))
void cpu_model::mlp_block(std::int64_t rows, std::size_t index) {
  const model_config& c = config();
  const std::int64_t inner = c.intermediate_size;
  cpu::rms_norm(pool_, {hidden_.data(), c.hidden_size, normed_.data(), c.hidden_size, rows, 1, c.hidden_size,
                        weights_->layers[index].mlp_norm.data(), c.norm_epsilon});
  packed_.layers()[index].gate_up.apply(pool_, normed_.data(), c.hidden_size, rows, gate_up_.data(), 2 * inner);
  cpu::swiglu(pool_, {gate_up_.data(), 2 * inner, gated_.data(), inner, rows, inner});
  packed_.layers()[index].down.apply(pool_, gated_.data(), inner, rows, hidden_.data(), c.hidden_size, true);
}

const float* cpu_model::logits(std::span<const std::int32_t> rows) {
  const std::int64_t width = config().hidden_size;
  const std::int64_t count = static_cast<std::int64_t>(rows.size());
  for (std::int64_t i = 0; i < count; ++i) {
    std::copy_n(hidden_.data() + rows[static_cast<std::size_t>(i)] * width, width, head_input_.data() + i * width);
  }
  cpu::rms_norm(
      pool_, {head_input_.data(), width, head_input_.data(), width, count, 1, width, weights_->final_norm.data(), config().norm_epsilon});
  packed_.head().apply(pool_, head_input_.data(), width, count, logits_.data(), packed_.head().rows());
  return logits_.data();
}

} // namespace troupe
