// The batch-invariant chain: the same kernels with the same order of sums for any number of rows, decoded or of a prompt.
#include <algorithm>

#include "kernels/elementwise_gpu.hpp"
#include "models/gpu_model.hpp"

namespace troupe {

gpu::linear_args gpu_model::any_rows(const void* x, std::int32_t rows, const void* weight, std::int64_t out_rows, std::int64_t columns,
                                     void* y) const {
  gpu::linear_args args = few_rows(x, rows, nullptr, weight, out_rows, columns, y);
  args.batch_invariant = true;
  return args;
}

// product.y, rows of hidden, = product, plus what they were before where this rank brings that in
void gpu_model::add_in_place(const cuda::stream& on, const gpu::linear_args& product) const {
  const void* const residual = residual_of_rank(product.y);
  residual != nullptr ? gpu::linear_residual(on.handle(), product, residual) : gpu::linear(on.handle(), product);
}

// [norm] [q k v, rotation, KV write] [attention] [output, residual]
void gpu_model::invariant_attention_block(const cuda::stream& on, const gpu_batch& batch, const gpu_part& part, std::int32_t index) {
  const gpu_layer_weights& w = weights_.layers[static_cast<std::size_t>(index)];
  void* const hidden = from_row(hidden_, part.first, config_.hidden_size);
  mark(on, kernel_group::attention_input);
  norm(on, hidden, w.attention_norm, part.rows, normed_.data());
  invariant_attention_input(on, batch, part, index);
  mark(on, kernel_group::attention);
  attend(on, batch, part, index);
  mark(on, kernel_group::attention_output);
  const void* const attended = from_row(attended_, part.first, query_width());
  gpu::linear_args output = any_rows(attended, part.rows, w.output, config_.hidden_size, query_width(), hidden);
  output.bias = w.output_bias;
  add_in_place(on, output);
}

// Leaves queries at stride qkv_width(). QK-norm, and heads that the product's epilogue cannot turn, take a launch of their own.
void gpu_model::invariant_attention_input(const cuda::stream& on, const gpu_batch& batch, const gpu_part& part, std::int32_t index) {
  const gpu_layer_weights& w = weights_.layers[static_cast<std::size_t>(index)];
  void* const turned = from_row(qkv_, part.first, qkv_width());
  gpu::linear_args qkv = any_rows(normed_.data(), part.rows, w.qkv, qkv_width(), config_.hidden_size, turned);
  qkv.bias = w.qkv_bias;
  const gpu::row_places places{rows_.positions + part.first, batch.block_tables, rows_.table_stride};
  const std::int32_t* const tables = rows_.tables + part.first;
  if (w.query_norm == nullptr && config_.head_dim % 16 == 0) {
    return gpu::linear_qkv(on.handle(), qkv, {config_.num_heads, places, {cos_.as<float>(), sin_.as<float>()}, kv_of(index), tables});
  }
  gpu::linear(on.handle(), qkv);
  gpu::rope_kv_args turn = turning(w, part.rows, index);
  turn.qkv = turned;
  turn.places = places;
  turn.tables = tables;
  turn.overlaps = shape_.overlaps;
  gpu::rope_and_kv_write(on.handle(), turn);
}

// [norm] [gates and ups, SwiGLU] [down, residual]
void gpu_model::invariant_mlp_block(const cuda::stream& on, const gpu_part& part, std::int32_t index) {
  const gpu_layer_weights& w = weights_.layers[static_cast<std::size_t>(index)];
  const std::int64_t wide = config_.intermediate_size;
  void* const hidden = from_row(hidden_, part.first, config_.hidden_size);
  mark(on, kernel_group::mlp_input);
  norm(on, hidden, w.mlp_norm, part.rows, normed_.data());
  gpu::linear_args gate_up = any_rows(normed_.data(), part.rows, w.gate_up, 2 * wide, config_.hidden_size, gated_.data());
  gate_up.y_stride = wide;
  gpu::linear_swiglu(on.handle(), gate_up);
  mark(on, kernel_group::mlp_output);
  add_in_place(on, any_rows(gated_.data(), part.rows, w.down, config_.hidden_size, wide, hidden));
}

// `count` elements of hidden become the sums over all ranks. A library's sum goes in an order that depends on their number; this one
// gathers what each rank has, in the place of gates and ups, which this chain never writes out, as much at a time as there is room for.
void gpu_model::sum_in_order_of_ranks(const cuda::stream& on, std::byte* rows, std::size_t count) {
  constexpr std::size_t element = 2;
  const auto ranks = static_cast<std::size_t>(tensor_->size());
  const std::size_t room = gate_up_.size() / (ranks * element) / 8 * 8;
  for (std::size_t at = 0; at < count; at += room) {
    const std::size_t some = std::min(room, count - at);
    std::byte* const mine = rows + at * element;
    tensor_->all_gather({mine, some, shape_.type}, {gate_up_.data(), ranks * some, shape_.type}, on.handle());
    gpu::sum_parts(on.handle(), {shape_.type, gate_up_.data(), tensor_->size(), static_cast<std::int64_t>(some), mine, shape_.overlaps});
  }
}

} // namespace troupe
