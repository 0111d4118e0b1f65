// The fused chain of decode steps: the norm, a product and what stands behind it are one op each.
#include "kernels/elementwise_gpu.hpp"
#include "models/gpu_model.hpp"
#include "models/gpu_rank_sums.hpp"

namespace troupe {
namespace {

constexpr std::int32_t most_rows_normed_by_products = 8; // on the way, without a launch of their own

} // namespace

gpu::linear_args gpu_model::few_rows(const void* x, std::int32_t rows, const void* norm_weight, const void* weight, std::int64_t out_rows,
                                     std::int64_t columns, void* y) const {
  gpu::linear_args args;
  args.type = shape_.type;
  args.weight = weight;
  args.out_rows = args.y_stride = out_rows;
  args.columns = args.x_stride = columns;
  args.x = x;
  args.rows = rows;
  args.norm_weight = norm_weight;
  args.epsilon = config_.norm_epsilon;
  args.y = y;
  args.workspace = linear_workspace_.data();
  args.overlaps = shape_.overlaps;
  return args;
}

bool gpu_model::takes_few_sums(std::int32_t rows) const { return few_sums_ != nullptr && few_sums_->takes(rows); }
// Whether a sum of so many rows is normalised for the next product, which is cheaper than a launch between them.
bool gpu_model::normalises_few_sums(std::int32_t rows) const {
  return takes_few_sums(rows) && rows > most_rows_normed_by_products && config_.hidden_size <= gpu::most_normed_columns;
}

// hidden += product, of all ranks. `next_norm`: of the product that comes next, or null.
void gpu_model::add_to_hidden(const cuda::stream& on, gpu::linear_args product, const void* next_norm) {
  const std::int32_t rows = product.rows;
  if (!takes_few_sums(rows)) {
    product.y = hidden_.data();
    const void* const residual = residual_of_rank();
    residual != nullptr ? gpu::linear_residual(on.handle(), product, residual) : gpu::linear(on.handle(), product);
    return sum_over_ranks(on, rows);
  }
  product.y = few_sums_->part();
  gpu::linear(on.handle(), product);
  mark(on, kernel_group::collectives); // with the residual, and mostly the next norm
  few_sums_->run({few_sums_->part(), hidden_.data(), hidden_.data(), rows, normalises_few_sums(rows) ? next_norm : nullptr,
                  config_.norm_epsilon, normed_.data(), shape_.overlaps});
}

// A product of hidden's rows, normalised. `summed`: add_to_hidden() with that norm came before.
gpu::linear_args gpu_model::few_hidden_rows(bool summed, std::int32_t rows, const void* norm_weight, const void* weight,
                                            std::int64_t out_rows, void* y) const {
  const bool normed = summed && normalises_few_sums(rows);
  return few_rows(normed ? normed_.data() : hidden_.data(), rows, normed ? nullptr : norm_weight, weight, out_rows, config_.hidden_size, y);
}

// [norm, q k v, rotation, KV write] [attention] [output, residual] [norm, gates and ups, SwiGLU] [down, residual]; where ranks share the
// layer, a launch behind [output] and [down] sums up, with the residual, and above 8 rows with the next norm
void gpu_model::fused_layer(const cuda::stream& on, std::int32_t rows, std::int32_t index) {
  const gpu_layer_weights& w = weights_.layers[static_cast<std::size_t>(index)];
  const std::int64_t hidden = config_.hidden_size, wide = config_.intermediate_size;
  mark(on, kernel_group::attention_input);
  fused_attention_input(on, rows, index);
  mark(on, kernel_group::attention);
  attend_decode(on, rows, index, w.query_norm != nullptr ? qkv_width() : query_width(), shape_.overlaps);
  mark(on, kernel_group::attention_output);
  gpu::linear_args output = few_rows(attended_.data(), rows, nullptr, w.output, hidden, query_width(), nullptr);
  output.bias = w.output_bias;
  add_to_hidden(on, output, w.mlp_norm);
  mark(on, kernel_group::mlp_input);
  gpu::linear_args gate_up = few_hidden_rows(true, rows, w.mlp_norm, w.gate_up, 2 * wide, gated_.data());
  gate_up.y_stride = wide;
  gpu::linear_swiglu(on.handle(), gate_up);
  mark(on, kernel_group::mlp_output);
  const auto next = static_cast<std::size_t>(index) + 1;
  add_to_hidden(on, few_rows(gated_.data(), rows, nullptr, w.down, hidden, wide, nullptr),
                next < weights_.layers.size() ? weights_.layers[next].attention_norm : weights_.final_norm);
}

// Leaves queries at stride query_width(), or with QK-norm, which takes a launch of its own, at qkv_width().
void gpu_model::fused_attention_input(const cuda::stream& on, std::int32_t rows, std::int32_t index) {
  const gpu_layer_weights& w = weights_.layers[static_cast<std::size_t>(index)];
  gpu::linear_args qkv = few_hidden_rows(index > 0, rows, w.attention_norm, w.qkv, qkv_width(), qkv_.data());
  qkv.bias = w.qkv_bias;
  qkv.holds_next = index == 0; // attention reads the tables without waiting for the kernel before this
  if (w.query_norm != nullptr) {
    gpu::linear(on.handle(), qkv);
    gpu::rope_kv_args turn = turning(w, rows, index);
    turn.places = {rows_.positions, rows_.row_tables, rows_.table_stride};
    turn.overlaps = shape_.overlaps;
    turn.among_fused = true;
    gpu::rope_and_kv_write(on.handle(), turn);
    return;
  }
  qkv.y_stride = query_width();
  gpu::linear_qkv(
      on.handle(), qkv,
      {config_.num_heads, {rows_.positions, rows_.row_tables, rows_.table_stride}, {cos_.as<float>(), sin_.as<float>()}, kv_of(index)});
}

fused_head gpu_model::fused_logits(const cuda::stream& on, std::int32_t rows) {
  const gpu::linear_args head = few_hidden_rows(true, rows, weights_.final_norm, weights_.head, shape_.ends.ids.places, own_logits(rows));
  fused_head out;
  if (shape_.head_parts == 1) {
    out.tops = tops_.as<gpu::logit_top>();
    out.tops_count = gpu::linear_to_logits(on.handle(), head, config_.vocab_size, tops_.as<gpu::logit_top>());
  } else {
    gpu::linear_to_f32(on.handle(), head);
  }
  out.logits = whole_logits(on, rows);
  return out;
}

} // namespace troupe
