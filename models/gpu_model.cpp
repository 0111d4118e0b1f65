#include "models/gpu_model.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "device/cuda/pinned_ring.hpp"
#include "kernels/elementwise_gpu.hpp"
#include "kernels/plain_attention_gpu.hpp"
#include "kernels/plain_linear_gpu.hpp"
#include "kernels/rope.hpp"
#include "models/rope_frequencies.hpp"

namespace troupe {
namespace {

constexpr std::size_t element = 2;

kv_layout layout_of(const model_config& c, const gpu_model_shape& s) { return {s.type, s.block_size, c.num_kv_heads, c.head_dim}; }

std::int64_t blocks_per_slot(const gpu_model_shape& s) { return (std::int64_t{s.max_model_len} + s.block_size - 1) / s.block_size; }

// Bytes of each buffer, in the order of the constructor.
struct buffer_sizes {
  buffer_sizes(const model_config& c, const gpu_model_shape& s) {
    const auto rows = static_cast<std::size_t>(s.max_rows), heads = static_cast<std::size_t>(s.head_rows);
    const auto hidden_size = static_cast<std::size_t>(c.hidden_size), wide = static_cast<std::size_t>(c.intermediate_size);
    const auto dim = static_cast<std::size_t>(c.head_dim);
    const auto queries = static_cast<std::size_t>(c.num_heads) * dim, keys = static_cast<std::size_t>(c.num_kv_heads) * dim;
    angles = static_cast<std::size_t>(s.max_model_len) * (dim / 2) * sizeof(float);
    row_ints = rows * sizeof(std::int32_t);
    tables = static_cast<std::size_t>(s.max_slots) * static_cast<std::size_t>(blocks_per_slot(s)) * sizeof(std::int32_t);
    hidden = rows * hidden_size * element;
    qkv = rows * (queries + 2 * keys) * element;
    attended = rows * queries * element;
    gate_up = rows * 2 * wide * element;
    head_hidden = heads * hidden_size * element;
    logits = heads * static_cast<std::size_t>(c.vocab_size) * sizeof(float);
  }
  std::size_t total() const {
    return 2 * angles + 3 * row_ints + tables + 2 * hidden + qkv + attended + gate_up + gate_up / 2 + 2 * head_hidden + logits;
  }
  std::size_t angles, row_ints, tables, hidden, qkv, attended, gate_up, head_hidden, logits;
};

void upload(const cuda::stream& on, std::byte* to, const void* from, std::size_t bytes) {
  cuda::pinned_ring staging(1, bytes);
  std::byte* const pinned = staging.next();
  std::memcpy(pinned, from, bytes);
  cuda::copy_in(on, to, pinned, bytes);
  on.synchronize();
}

} // namespace

std::size_t gpu_model::kv_block_bytes(const model_config& config, const gpu_model_shape& shape) {
  return layout_of(config, shape).block_bytes() * static_cast<std::size_t>(config.num_layers);
}

std::size_t gpu_model::activation_bytes(const model_config& config, const gpu_model_shape& shape) {
  return buffer_sizes(config, shape).total();
}

std::string gpu_model::unsupported(const model_config& c) {
  if (c.rope.rotary_dim != c.head_dim) {
    return "only the first " + std::to_string(c.rope.rotary_dim) + " of " + std::to_string(c.head_dim) + " dimensions of a head rotate";
  }
  if (c.head_dim > 256) return "head_dim is " + std::to_string(c.head_dim) + ", more than 256";
  return {};
}

gpu_model::gpu_model(const model_config& config, const gpu_model_shape& shape, gpu_weights weights, cuda::caching_allocator& memory,
                     const cuda::stream& on)
    : config_(config), shape_(shape), weights_(std::move(weights)) {
  const buffer_sizes size(config, shape);
  kv_ = memory.allocate(kv_layer_bytes() * static_cast<std::size_t>(config.num_layers), "KV cache");
  cuda::clear(on, kv_.data(), kv_.size()); // no NaN where nothing was written yet
  const auto take = [&](std::size_t bytes) { return memory.allocate(bytes, "activations"); };
  cos_ = take(size.angles), sin_ = take(size.angles);
  tokens_ = take(size.row_ints), positions_ = take(size.row_ints), head_rows_ = take(size.row_ints);
  row_tables_ = take(size.tables);
  hidden_ = take(size.hidden), normed_ = take(size.hidden);
  qkv_ = take(size.qkv), attended_ = take(size.attended);
  gate_up_ = take(size.gate_up), gated_ = take(size.gate_up / 2);
  head_input_ = take(size.head_hidden), head_normed_ = take(size.head_hidden), logits_ = take(size.logits);
  rows_ = {reinterpret_cast<token_id*>(tokens_.data()), reinterpret_cast<std::int32_t*>(positions_.data()),
           reinterpret_cast<std::int32_t*>(row_tables_.data()), reinterpret_cast<std::int32_t*>(head_rows_.data()), blocks_per_slot(shape)};
  rope_spectrum spectrum = rope_frequencies(config.rope);
  rope_table table(std::move(spectrum.frequencies), spectrum.magnitude);
  table.reserve(shape.max_model_len);
  upload(on, cos_.data(), table.view().cos, size.angles);
  upload(on, sin_.data(), table.view().sin, size.angles);
}

std::size_t gpu_model::kv_layer_bytes() const {
  return layout_of(config_, shape_).block_bytes() * (static_cast<std::size_t>(shape_.num_blocks) + 1);
}

kv_layer_view gpu_model::kv_of(std::int32_t layer) const {
  return {layout_of(config_, shape_), kv_.data() + static_cast<std::size_t>(layer) * kv_layer_bytes()};
}

gpu::row_places gpu_model::row_places_of(std::int32_t first_row, const gpu_span* span) const {
  if (span != nullptr) return {rows_.positions + first_row, span->table, 0};
  return {rows_.positions + first_row, rows_.row_tables, rows_.table_stride};
}

bool gpu_model::fuses(const gpu_batch&) const { return false; }

void gpu_model::forward(const cuda::stream& on, const gpu_batch& batch, const after_layer_fn& after_layer) {
  const std::int32_t rows = batch.rows();
  gpu::embedding(on.handle(), {shape_.type, weights_.embedding, rows_.tokens, rows, config_.hidden_size, hidden_.data(),
                               config_.hidden_size, false});
  for (std::int32_t i = 0; i < config_.num_layers; ++i) {
    attention_block(on, batch, i);
    mlp_block(on, rows, i);
    if (after_layer) after_layer(i);
  }
}

void gpu_model::norm(const cuda::stream& on, const void* x, const void* weight, std::int32_t rows, void* y) {
  gpu::rms_norm_args args;
  args.type = shape_.type;
  args.x = x;
  args.y = y;
  args.stride = args.columns = config_.hidden_size;
  args.rows = rows;
  args.weight = weight;
  args.epsilon = config_.norm_epsilon;
  gpu::rms_norm(on.handle(), args);
}

void gpu_model::product(const cuda::stream& on, const void* x, std::int32_t rows, const void* weight, std::int64_t out_rows,
                        std::int64_t columns, const void* bias, const void* residual, void* y) {
  gpu::plain_linear(on.handle(), {shape_.type, weight, out_rows, columns, x, columns, rows, bias, residual, y, out_rows, false});
}

void gpu_model::head_norms(const cuda::stream& on, std::int32_t rows, const gpu_layer_weights& w) {
  const auto each = [&](std::int64_t first, std::int32_t heads, const void* weight) {
    for (std::int32_t row = 0; row < rows; ++row) {
      gpu::rms_norm_args args;
      args.type = shape_.type;
      args.y = qkv_.data() + static_cast<std::size_t>(row * qkv_width() + first) * element;
      args.x = args.y;
      args.stride = args.columns = config_.head_dim;
      args.rows = heads;
      args.weight = weight;
      args.epsilon = config_.norm_epsilon;
      gpu::rms_norm(on.handle(), args);
    }
  };
  if (w.query_norm != nullptr) each(0, config_.num_heads, w.query_norm);
  if (w.key_norm != nullptr) each(query_width(), config_.num_kv_heads, w.key_norm);
}

// hidden += output(attention(rope(norm(qkv(norm(hidden))))))
void gpu_model::attention_block(const cuda::stream& on, const gpu_batch& batch, std::int32_t index) {
  const gpu_layer_weights& w = weights_.layers[static_cast<std::size_t>(index)];
  const std::int32_t rows = batch.rows();
  norm(on, hidden_.data(), w.attention_norm, rows, normed_.data());
  product(on, normed_.data(), rows, w.qkv, qkv_width(), config_.hidden_size, w.qkv_bias, nullptr, qkv_.data());
  head_norms(on, rows, w);
  const auto turn = [&](std::int32_t first, std::int32_t count, const gpu_span* span) {
    gpu::rope_kv_args args;
    args.qkv = qkv_.data() + static_cast<std::size_t>(first * qkv_width()) * element;
    args.stride = qkv_width();
    args.rows = count;
    args.heads = config_.num_heads;
    args.places = row_places_of(first, span);
    args.table = {reinterpret_cast<const float*>(cos_.data()), reinterpret_cast<const float*>(sin_.data())};
    args.kv = kv_of(index);
    gpu::rope_and_kv_write(on.handle(), args);
  };
  if (batch.table_rows > 0) turn(0, batch.table_rows, nullptr);
  for (const gpu_span& span : batch.spans) turn(span.first_row, span.rows, &span);
  attend(on, batch, index);
  product(on, attended_.data(), rows, w.output, config_.hidden_size, query_width(), w.output_bias, hidden_.data(), hidden_.data());
}

void gpu_model::attend(const cuda::stream& on, const gpu_batch& batch, std::int32_t index) {
  const bool slides = config_.sliding_window && index >= config_.first_sliding_layer;
  const auto rows = [&](std::int32_t first, std::int32_t count, const gpu_span* span) {
    gpu::plain_attention_args args;
    args.query = qkv_.data() + static_cast<std::size_t>(first * qkv_width()) * element;
    args.query_stride = qkv_width();
    args.output = attended_.data() + static_cast<std::size_t>(first * query_width()) * element;
    args.output_stride = query_width();
    args.rows = count;
    args.heads = config_.num_heads;
    args.scale = 1.0F / std::sqrt(static_cast<float>(config_.head_dim));
    args.window = slides ? *config_.sliding_window : 0;
    args.places = row_places_of(first, span);
    args.kv = kv_of(index);
    gpu::plain_attention(on.handle(), args);
  };
  if (batch.table_rows > 0) rows(0, batch.table_rows, nullptr);
  for (const gpu_span& span : batch.spans) rows(span.first_row, span.rows, &span);
}

// hidden += down(swiglu(gate_up(norm(hidden))))
void gpu_model::mlp_block(const cuda::stream& on, std::int32_t rows, std::int32_t index) {
  const gpu_layer_weights& w = weights_.layers[static_cast<std::size_t>(index)];
  const std::int64_t wide = config_.intermediate_size;
  norm(on, hidden_.data(), w.mlp_norm, rows, normed_.data());
  product(on, normed_.data(), rows, w.gate_up, 2 * wide, config_.hidden_size, nullptr, nullptr, gate_up_.data());
  gpu::swiglu(on.handle(), {shape_.type, gate_up_.data(), 2 * wide, gated_.data(), wide, rows, wide, false});
  product(on, gated_.data(), rows, w.down, config_.hidden_size, wide, nullptr, hidden_.data(), hidden_.data());
}

const float* gpu_model::logits(const cuda::stream& on, std::int32_t first, std::int32_t count) {
  const std::int64_t hidden = config_.hidden_size;
  // A gather is an embedding of the rows' numbers.
  gpu::embedding(on.handle(), {shape_.type, hidden_.data(), rows_.head_rows + first, count, hidden, head_input_.data(), hidden, false});
  norm(on, head_input_.data(), weights_.final_norm, count, head_normed_.data());
  gpu::plain_linear(on.handle(), {shape_.type, weights_.head, config_.vocab_size, hidden, head_normed_.data(), hidden, count, nullptr,
                                  nullptr, logits_.data(), config_.vocab_size, true});
  return reinterpret_cast<const float*>(logits_.data());
}

} // namespace troupe
