#include "models/cpu_model.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/embedding.hpp"
#include "kernels/parallel.hpp"
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

cpu::kv_storage make_kv(const model_weights& weights, const cpu_model_shape& shape, const std::optional<kv_keeping>& keep) {
  const model_config& c = weights.config;
  kv_pool pool{{shape.kv_type, shape.block_size, c.num_kv_heads, c.head_dim}, c.num_layers, shape.num_blocks, 0};
  pool.bytes = cpu::kv_storage::bytes_of(pool.layout, pool.layers, pool.blocks);
  return {pool.layout, pool.layers, pool.blocks, claim_kv(keep, weights.source, "cpu", pool, keeper::memory_kind::host)};
}

} // namespace

cpu_model::cpu_model(std::shared_ptr<const model_weights> weights, const cpu_model_shape& shape, rank_context rank,
                     const std::optional<keeper::access>& keep, const std::optional<kv_keeping>& keep_kv)
    : weights_(std::move(weights)),
      shape_(shape),
      rank_(std::move(rank)),
      vocab_(slice_of_vocab(config().vocab_size, rank_.tp_rank, rank_.tp_size)),
      pool_(shape.threads),
      rope_(make_rope_table(config().rope)),
      packed_(*weights_, keep, pool_),
      kv_(make_kv(*weights_, shape, keep_kv)),
      query_width_(std::int64_t{config().num_heads} * config().head_dim),
      kv_width_(std::int64_t{config().num_kv_heads} * config().head_dim),
      hidden_(rows_of(shape.max_rows, config().hidden_size)),
      normed_(rows_of(shape.max_rows, config().hidden_size)),
      qkv_(rows_of(shape.max_rows, query_width_ + 2 * kv_width_)),
      attended_(rows_of(shape.max_rows, query_width_)),
      gate_up_(rows_of(shape.max_rows, 2 * std::int64_t{config().intermediate_size})),
      gated_(rows_of(shape.max_rows, config().intermediate_size)),
      head_input_(rows_of(shape.head_rows, rank_.last_stage() ? config().hidden_size : 0)),
      logits_(rows_of(shape.head_rows, rank_.leader() ? logits_stride() : 0)),
      vocab_part_(rows_of(shape.head_rows, rank_.last_stage() && rank_.tp_size > 1 ? vocab_.places : 0)) {
  tell_kv(keep_kv, kv_.bytes(), kv_.lease().found(), kv_.lease().claim());
  std::fill_n(vocab_part_.data(), vocab_part_.size(), 0.0F); // places without an id are never written
}

void cpu_model::forward(const forward_batch& batch) {
  const std::int64_t rows = static_cast<std::int64_t>(batch.tokens.size());
  if (rows == 0) return;
  const std::int64_t positions = std::int64_t{*std::max_element(batch.positions.begin(), batch.positions.end())} + 1;
  if (positions > rope_.size()) rope_.reserve(std::max(positions, std::min<std::int64_t>(2 * rope_.size(), config().max_position)));
  cpu::split_attention(batch.spans, config().num_heads, config().num_kv_heads, units_);
  enter(batch);
  for (std::size_t i = 0; i < packed_.layers().size(); ++i) {
    attention_block(batch, i);
    mlp_block(rows, i);
    if (batch.after_layer) batch.after_layer(hidden_.data());
  }
  leave(rows);
}

collective_buffer cpu_model::hidden_rows(std::int64_t rows) {
  return {hidden_.data(), static_cast<std::size_t>(rows * config().hidden_size), dtype::f32};
}

void cpu_model::enter(const forward_batch& batch) {
  if (rank_.first_stage()) return embed(batch.tokens);
  const collective_buffer rows = hidden_rows(static_cast<std::int64_t>(batch.tokens.size()));
  with_pipeline(rank_, [&](communicator& stages) { stages.receive(rows, rank_.stage - 1); });
}

void cpu_model::leave(std::int64_t rows) {
  if (rank_.last_stage()) return;
  with_pipeline(rank_, [&](communicator& stages) { stages.send(hidden_rows(rows), rank_.stage + 1); });
}

// Each rank looks up the ids that it holds; one of them has a row, the others zeros.
void cpu_model::embed(std::span<const token_id> tokens) {
  const std::int64_t rows = static_cast<std::int64_t>(tokens.size()), width = config().hidden_size;
  if (rank_.tp_size == 1) return cpu::embedding(pool_, {packed_.embedding(), tokens.data(), rows, hidden_.data(), width});
  cpu::for_rows(pool_, rows, width, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const token_id token = tokens[static_cast<std::size_t>(i)];
      float* const to = hidden_.data() + i * width;
      vocab_.holds(token) ? cpu::dequantise_row(packed_.embedding(), token - vocab_.first, to)
                          : static_cast<void>(std::fill_n(to, width, 0.0F));
    }
  });
  add_up(rows);
}

void cpu_model::add_up(std::int64_t rows) {
  if (rank_.tp_size == 1) return;
  with_tensor(rank_, [&](communicator& peers) { peers.all_reduce(hidden_rows(rows)); });
}

// hidden += output(attention(rope(norm(qkv(norm(hidden)))))). In a group the first rank brings what was there into the sum.
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
  packed_.layers()[index].output.apply(pool_, attended_.data(), query_width_, rows, hidden_.data(), c.hidden_size, rank_.tp_rank == 0);
  add_up(rows);
}

// hidden += down(swiglu(gate_up(norm(hidden))))
void cpu_model::mlp_block(std::int64_t rows, std::size_t index) {
  const model_config& c = config();
  const std::int64_t inner = c.intermediate_size;
  cpu::rms_norm(pool_, {hidden_.data(), c.hidden_size, normed_.data(), c.hidden_size, rows, 1, c.hidden_size,
                        weights_->layers[index].mlp_norm.data(), c.norm_epsilon});
  packed_.layers()[index].gate_up.apply(pool_, normed_.data(), c.hidden_size, rows, gate_up_.data(), 2 * inner);
  cpu::swiglu(pool_, {gate_up_.data(), 2 * inner, gated_.data(), inner, rows, inner});
  packed_.layers()[index].down.apply(pool_, gated_.data(), inner, rows, hidden_.data(), c.hidden_size, rank_.tp_rank == 0);
  add_up(rows);
}

const float* cpu_model::logits(std::span<const std::int32_t> rows) {
  const std::int64_t width = config().hidden_size;
  const std::int64_t count = static_cast<std::int64_t>(rows.size());
  for (std::int64_t i = 0; i < count; ++i) {
    std::copy_n(hidden_.data() + rows[static_cast<std::size_t>(i)] * width, width, head_input_.data() + i * width);
  }
  cpu::rms_norm(
      pool_, {head_input_.data(), width, head_input_.data(), width, count, 1, width, weights_->final_norm.data(), config().norm_epsilon});
  float* const to = rank_.tp_size == 1 ? logits_.data() : vocab_part_.data();
  if (packed_.head() != nullptr) packed_.head()->apply(pool_, head_input_.data(), width, count, to, vocab_.places);
  return rank_.tp_size == 1 ? to : gather_logits(count);
}

// The ranks' parts of each row, one behind the other.
const float* cpu_model::gather_logits(std::int64_t rows) {
  const std::size_t places = static_cast<std::size_t>(vocab_.places);
  const collective_buffer part{vocab_part_.data(), static_cast<std::size_t>(rows) * places, dtype::f32};
  if (!rank_.leader()) {
    with_tensor(rank_, [&](communicator& peers) { peers.send(part, 0); });
    return nullptr;
  }
  for (int rank = 0; rank < rank_.tp_size; ++rank) {
    if (rank > 0) with_tensor(rank_, [&](communicator& peers) { peers.receive(part, rank); });
    for (std::int64_t row = 0; row < rows; ++row) {
      std::copy_n(vocab_part_.data() + row * vocab_.places, places, logits_.data() + row * logits_stride() + rank * vocab_.places);
    }
  }
  return logits_.data();
}

} // namespace troupe
