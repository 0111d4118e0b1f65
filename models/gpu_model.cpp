#include "models/gpu_model.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "device/cuda/pinned_ring.hpp"
#include "kernels/attention_gpu.hpp"
#include "kernels/elementwise_gpu.hpp"
#include "kernels/plain_attention_gpu.hpp"
#include "kernels/rope.hpp"
#include "models/gpu_rank_sums.hpp"
#include "models/rope_frequencies.hpp"

namespace troupe {
namespace {

constexpr std::size_t element = 2;
constexpr std::size_t most_rows_with_tops = 2;
constexpr std::int32_t most_fused_rows = 128; // what products of the fused chain take

kv_layout layout_of(const model_config& c, const gpu_model_shape& s) { return {s.type, s.block_size, c.num_kv_heads, c.head_dim}; }

std::int64_t blocks_per_slot(const gpu_model_shape& s) { return (std::int64_t{s.max_model_len} + s.block_size - 1) / s.block_size; }

// Heads whose size the quick kernels know.
bool has_quick_attention(const model_config& c) { return c.head_dim == 64 || c.head_dim == 128; }

std::size_t linear_workspace(const model_config& c, const gpu_model_shape& s) {
  const std::int64_t widest = std::max({c.hidden_size, c.intermediate_size, c.num_heads * c.head_dim});
  return gpu::linear_workspace(std::min(s.decode_rows, most_fused_rows), widest);
}

// For the decode rows of a step at once, and for some tiles of a prompt.
std::size_t share_workspace(const model_config& c, const gpu_model_shape& s) {
  constexpr std::size_t tiles_at_once = std::size_t{64} << 20;
  const auto of = [&](std::int32_t tiles, std::int32_t rows) {
    return gpu::attention_shares_workspace(tiles, rows, c.num_heads, c.head_dim, s.max_model_len);
  };
  return std::max({of(s.decode_rows, 1), of(1, gpu::prefill_tile_rows(c.num_heads, c.num_kv_heads)), tiles_at_once});
}

// Bytes of each buffer.
struct buffer_sizes {
  buffer_sizes(const model_config& c, const gpu_model_shape& s) {
    const auto rows = static_cast<std::size_t>(s.max_rows), held = static_cast<std::size_t>(s.logits_rows);
    const auto hidden_size = static_cast<std::size_t>(c.hidden_size), wide = static_cast<std::size_t>(c.intermediate_size);
    const auto dim = static_cast<std::size_t>(c.head_dim);
    const auto queries = static_cast<std::size_t>(c.num_heads) * dim, keys = static_cast<std::size_t>(c.num_kv_heads) * dim;
    angles = static_cast<std::size_t>(s.max_model_len) * (dim / 2) * sizeof(float);
    row_ints = rows * sizeof(std::int32_t);
    row_tiles = s.batch_invariant ? static_cast<std::size_t>(s.decode_rows) * sizeof(gpu::prefill_tile) : 0;
    head_ints = static_cast<std::size_t>(s.max_head_rows) * sizeof(std::int32_t);
    row_tables = static_cast<std::size_t>(s.decode_rows) * static_cast<std::size_t>(blocks_per_slot(s)) * sizeof(std::int32_t);
    hidden = rows * hidden_size * element;
    qkv = rows * (queries + 2 * keys) * element;
    attended = rows * queries * element;
    gate_up = std::max(rows * 2 * wide * element, std::size_t{64} << 10); // also what a batch-invariant group gathers
    head_hidden = held * hidden_size * element;
    logits =
        (s.ends.head ? held : 0) * static_cast<std::size_t>(s.ends.ids.places) * static_cast<std::size_t>(s.head_parts) * sizeof(float);
    gathered = s.head_parts > 1 ? logits : 0;
    products = linear_workspace(c, s);
    if (s.batch_invariant && has_quick_attention(c)) shares = share_workspace(c, s);
    if (s.ends.head)
      tops = std::min(static_cast<std::size_t>(s.decode_rows), most_rows_with_tops) * std::size_t{gpu::most_logit_tops} *
             sizeof(gpu::logit_top);
  }
  std::size_t total() const {
    return 2 * angles + 3 * row_ints + head_ints + row_tables + row_tiles + 2 * hidden + qkv + attended + gate_up + gate_up / 2 +
           head_hidden + logits + gathered + products + shares + tops;
  }
  std::size_t products, angles, row_ints, head_ints, row_tables, row_tiles, hidden, qkv, attended, gate_up, head_hidden, logits, gathered;
  std::size_t shares = 0, tops = 0;
};

void upload(const cuda::stream& on, std::byte* to, const void* from, std::size_t bytes) {
  cuda::pinned_ring staging(1, bytes);
  std::byte* const pinned = staging.next();
  std::memcpy(pinned, from, bytes);
  cuda::copy_in(on, to, pinned, bytes);
  on.synchronize();
}

} // namespace

std::size_t gpu_model::kv_bytes(const model_config& config, const gpu_model_shape& shape) {
  return layout_of(config, shape).block_bytes() * static_cast<std::size_t>(config.num_layers) * static_cast<std::size_t>(shape.num_blocks);
}

std::size_t gpu_model::row_bytes(const model_config& config) { return static_cast<std::size_t>(config.hidden_size) * element; }

std::size_t gpu_model::activation_bytes(const model_config& config, const gpu_model_shape& shape) {
  return buffer_sizes(config, shape).total();
}

std::string gpu_model::unsupported(const model_config& c) {
  if (c.rope.rotary_dim != c.head_dim) {
    return "only the first " + std::to_string(c.rope.rotary_dim) + " of " + std::to_string(c.head_dim) + " dimensions of a head rotate";
  }
  if (c.head_dim > 256) return "head_dim is " + std::to_string(c.head_dim) + ", more than 256";
  if ((c.hidden_size | c.intermediate_size | c.head_dim) % 8 != 0) {
    return "hidden_size " + std::to_string(c.hidden_size) + ", intermediate_size " + std::to_string(c.intermediate_size) +
           " and head_dim " + std::to_string(c.head_dim) + " are not all multiples of 8";
  }
  return {};
}

gpu_model::gpu_model(const model_config& config, const gpu_model_shape& shape, gpu_weights weights, std::byte* kv, bool kv_kept,
                     cuda::caching_allocator& memory, const cuda::stream& on, std::filesystem::path tuning_cache,
                     std::function<void(const std::string&)> log)
    : config_(config), shape_(shape), weights_(std::move(weights)), kv_(kv), matmul_(memory, std::move(tuning_cache), std::move(log)) {
  const buffer_sizes size(config, shape);
  if (!kv_kept) cuda::clear(on, kv_, kv_bytes(config, shape)); // no NaN where nothing was written yet
  const auto take = [&](std::size_t bytes) { return memory.allocate(std::max<std::size_t>(bytes, 1), "activations"); };
  cos_ = take(size.angles), sin_ = take(size.angles);
  tokens_ = take(size.row_ints), positions_ = take(size.row_ints), tables_ = take(size.row_ints), head_rows_ = take(size.head_ints);
  row_tables_ = take(size.row_tables), row_tiles_ = take(size.row_tiles), last_position_ = take(sizeof(std::int32_t));
  hidden_ = take(size.hidden), normed_ = take(size.hidden);
  qkv_ = take(size.qkv), attended_ = take(size.attended);
  gate_up_ = take(size.gate_up), gated_ = take(size.gate_up / 2);
  head_normed_ = take(size.head_hidden), logits_ = take(size.logits), gathered_ = take(size.gathered), tops_ = take(size.tops);
  linear_workspace_ = take(size.products), share_workspace_ = take(size.shares);
  rows_ = {tokens_.as<token_id>(),
           positions_.as<std::int32_t>(),
           tables_.as<std::int32_t>(),
           row_tables_.as<std::int32_t>(),
           shape.batch_invariant ? row_tiles_.as<gpu::prefill_tile>() : nullptr,
           shape.batch_invariant ? last_position_.as<std::int32_t>() : nullptr,
           head_rows_.as<std::int32_t>(),
           blocks_per_slot(shape)};
  rope_spectrum spectrum = rope_frequencies(config.rope);
  rope_table table(std::move(spectrum.frequencies), spectrum.magnitude);
  table.reserve(shape.max_model_len);
  upload(on, cos_.data(), table.view().cos, size.angles);
  upload(on, sin_.data(), table.view().sin, size.angles);
}

std::size_t gpu_model::kv_layer_bytes() const {
  return layout_of(config_, shape_).block_bytes() * static_cast<std::size_t>(shape_.num_blocks);
}

kv_layer_view gpu_model::kv_of(std::int32_t layer) const {
  return {layout_of(config_, shape_), kv_ + static_cast<std::size_t>(layer) * kv_layer_bytes()};
}

gpu::matmul_args gpu_model::product(const void* x, std::int32_t rows, const void* weight, std::int64_t out_rows, std::int64_t columns,
                                    void* y) const {
  gpu::matmul_args args;
  args.type = args.y_type = shape_.type;
  args.weight = weight;
  args.out_rows = args.y_stride = out_rows;
  args.columns = args.x_stride = columns;
  args.x = x;
  args.rows = rows;
  args.y = y;
  return args;
}

void gpu_model::tune(const cuda::stream& on, bool first) {
  if (shape_.batch_invariant) return; // which has no product of cuBLASLt's
  std::vector<std::int32_t> counts;
  for (std::int32_t rows = 16; rows < shape_.max_rows; rows *= 2) counts.push_back(rows);
  counts.push_back(shape_.max_rows);
  const auto of_layers = [&](const void* gpu_layer_weights::*matrix) {
    std::vector<const void*> all;
    for (const gpu_layer_weights& w : weights_.layers) all.push_back(w.*matrix);
    return all;
  };
  const auto measure = [&](const gpu::matmul_args& args, const std::vector<const void*>& matrices) {
    matmul_.tune(on, args, matrices, counts);
  };
  const std::int64_t hidden = config_.hidden_size, wide = config_.intermediate_size;
  gpu::matmul_args qkv = product(normed_.data(), 1, nullptr, qkv_width(), hidden, qkv_.data());
  qkv.bias = weights_.layers.front().qkv_bias;
  measure(qkv, of_layers(&gpu_layer_weights::qkv));
  gpu::matmul_args output = product(attended_.data(), 1, nullptr, hidden, query_width(), hidden_.data());
  output.bias = weights_.layers.front().output_bias;
  output.residual = first ? hidden_.data() : nullptr;
  measure(output, of_layers(&gpu_layer_weights::output));
  measure(product(normed_.data(), 1, nullptr, 2 * wide, hidden, gate_up_.data()), of_layers(&gpu_layer_weights::gate_up));
  gpu::matmul_args down = product(gated_.data(), 1, nullptr, hidden, wide, hidden_.data());
  down.residual = first ? hidden_.data() : nullptr;
  measure(down, of_layers(&gpu_layer_weights::down));
  matmul_.save();
}

bool gpu_model::fuses(const gpu_batch& batch) const {
  return shape_.fused && !shape_.batch_invariant && batch.rows == batch.decode_rows && batch.rows <= most_fused_rows &&
         has_quick_attention(config_);
}

void gpu_model::forward(const cuda::stream& on, const gpu_batch& batch, const after_layer_fn& after_layer) {
  const bool fused = fuses(batch);
  if (shape_.ends.embedding && !batch.embedded) {
    gpu::embedding(on.handle(), {shape_.type, weights_.embedding, rows_.tokens, batch.rows, config_.hidden_size, hidden_.data(),
                                 config_.hidden_size, false});
  }
  for (std::int32_t i = 0; i < config_.num_layers; ++i) {
    const bool first_of_kind = i < 2 || slides(i) != slides(i - 1); // the first layer's input is no sum
    if (batch.trial && !first_of_kind) continue;
    fused ? fused_layer(on, batch.rows, i) : layer(on, batch, i);
    if (after_layer) after_layer(i);
  }
  for (std::size_t i = 0; i < batch.part_count; ++i) {
    if (summing_[i]) norm_sum(on, batch, i, weights_.layers.back().mlp_norm, kernel_group::mlp_output); // for the sum alone
  }
}

void* gpu_model::from_row(const buffer& rows, std::int32_t first, std::int64_t width) const {
  return rows.data() + static_cast<std::size_t>(first * width) * element;
}

void gpu_model::norm(const cuda::stream& on, const void* x, const void* weight, std::int32_t rows, void* y, const std::int32_t* from) {
  gpu::norm_args args;
  args.type = shape_.type;
  args.x = x;
  args.y = y;
  args.stride = args.y_stride = args.columns = config_.hidden_size;
  args.rows = rows;
  args.weight = weight;
  args.epsilon = config_.norm_epsilon;
  args.from = from;
  args.overlaps = shape_.batch_invariant && shape_.overlaps;
  gpu::rms_norm(on.handle(), args);
}

gpu::rope_kv_args gpu_model::turning(const gpu_layer_weights& w, std::int32_t rows, std::int32_t index) const {
  gpu::rope_kv_args turn;
  turn.qkv = qkv_.data();
  turn.stride = qkv_width();
  turn.rows = rows;
  turn.heads = config_.num_heads;
  turn.table = {cos_.as<float>(), sin_.as<float>()};
  turn.kv = kv_of(index);
  turn.query_norm = w.query_norm;
  turn.key_norm = w.key_norm;
  turn.epsilon = config_.norm_epsilon;
  return turn;
}

// hidden += output(attention(rope(norm(qkv(norm(hidden)))))), but for the sum over ranks
void gpu_model::attention_block(const cuda::stream& on, const gpu_batch& batch, std::size_t number, std::int32_t index) {
  const gpu_part& part = batch.parts[number];
  const gpu_layer_weights& w = weights_.layers[static_cast<std::size_t>(index)];
  void* const hidden = from_row(hidden_, part.first, config_.hidden_size);
  void* const turned = from_row(qkv_, part.first, qkv_width());
  norm_sum(on, batch, number, w.attention_norm, kernel_group::attention_input);
  gpu::matmul_args qkv = product(normed_.data(), part.rows, w.qkv, qkv_width(), config_.hidden_size, turned);
  qkv.bias = w.qkv_bias;
  matmul_.run(on.handle(), qkv);
  gpu::rope_kv_args turn = turning(w, part.rows, index);
  turn.qkv = turned;
  turn.places = {rows_.positions + part.first, batch.block_tables, rows_.table_stride};
  turn.tables = rows_.tables + part.first;
  gpu::rope_and_kv_write(on.handle(), turn);
  mark(on, kernel_group::attention);
  attend(on, batch, part, index);
  mark(on, kernel_group::attention_output);
  const void* const attended = from_row(attended_, part.first, query_width());
  gpu::matmul_args output = product(attended, part.rows, w.output, config_.hidden_size, query_width(), hidden);
  output.bias = w.output_bias;
  output.residual = residual_of_rank(hidden);
  matmul_.run(on.handle(), output);
}

// What all kinds of attention are told of `rows` rows in a layer.
template <class Args>
Args gpu_model::attention_args(std::int32_t rows, std::int32_t index, std::int64_t query_stride) const {
  Args args;
  args.query = qkv_.data();
  args.query_stride = query_stride;
  args.output = attended_.data();
  args.output_stride = query_width();
  args.rows = rows;
  args.heads = config_.num_heads;
  args.scale = 1.0F / std::sqrt(static_cast<float>(config_.head_dim));
  args.window = slides(index) ? *config_.sliding_window : 0;
  args.kv = kv_of(index);
  return args;
}

void gpu_model::attend_decode(const cuda::stream& on, std::int32_t rows, std::int32_t index, std::int64_t query_stride, bool overlaps) {
  auto args = attention_args<gpu::decode_attention_args>(rows, index, query_stride);
  args.places = {rows_.positions, rows_.row_tables, rows_.table_stride};
  args.splits = gpu::decode_attention_splits(rows, config_.num_heads, config_.num_kv_heads, shape_.max_model_len);
  args.overlaps = overlaps;
  args.longest = shape_.max_model_len;
  args.unsettled = 1; // a row's own position; the first layer's product holds this back until the rows are laid out
  gpu::decode_attention(on.handle(), args);
}

void gpu_model::attend(const cuda::stream& on, const gpu_batch& batch, const gpu_part& part, std::int32_t index) {
  if (shape_.plain_attention || !has_quick_attention(config_)) {
    auto args = attention_args<gpu::plain_attention_args>(part.rows, index, qkv_width());
    args.query = from_row(qkv_, part.first, qkv_width());
    args.output = from_row(attended_, part.first, query_width());
    args.places = {rows_.positions + part.first, batch.block_tables, rows_.table_stride};
    args.tables = rows_.tables + part.first;
    return gpu::plain_attention(on.handle(), args);
  }
  if (batch.decode_rows > 0 && part.first == 0) {
    shape_.batch_invariant ? attend_tiles(on, batch, index, {rows_.row_tiles, batch.decode_rows, shape_.max_model_len})
                           : attend_decode(on, batch.decode_rows, index, qkv_width(), false);
  }
  const gpu_tiles& tiles = slides(index) ? part.sliding_tiles : part.tiles;
  if (tiles.count > 0) attend_tiles(on, batch, index, tiles);
}

void gpu_model::attend_tiles(const cuda::stream& on, const gpu_batch& batch, std::int32_t index, const gpu_tiles& tiles) {
  auto args = attention_args<gpu::prefill_attention_args>(batch.rows, index, qkv_width());
  args.tiles = tiles.first;
  args.tile_count = tiles.count;
  args.block_tables = batch.block_tables;
  args.table_stride = rows_.table_stride;
  args.blocks = shape_.num_blocks;
  args.overlaps = shape_.batch_invariant && shape_.overlaps;
  if (shape_.batch_invariant) args.shares = shares_of(tiles);
  gpu::prefill_attention(on.handle(), args);
}

// How positions are shared out in the batch-invariant chain, for the decode rows' tiles and those of prompts alike.
gpu::attention_shares gpu_model::shares_of(const gpu_tiles& tiles) const {
  const bool decodes = tiles.first == rows_.row_tiles;
  const std::int32_t rows = decodes ? 1 : gpu::prefill_tile_rows(config_.num_heads, config_.num_kv_heads);
  return {share_workspace_.data(), share_workspace_.size(), rows, tiles.end_position, decodes ? rows_.last_position : nullptr};
}

// hidden += down(swiglu(gate_up(norm(hidden)))), but for the sum over ranks
void gpu_model::mlp_block(const cuda::stream& on, const gpu_batch& batch, std::size_t number, std::int32_t index) {
  const gpu_part& part = batch.parts[number];
  const gpu_layer_weights& w = weights_.layers[static_cast<std::size_t>(index)];
  const std::int64_t wide = config_.intermediate_size;
  const std::int32_t rows = part.rows;
  void* const hidden = from_row(hidden_, part.first, config_.hidden_size);
  norm_sum(on, batch, number, w.mlp_norm, kernel_group::mlp_input);
  matmul_.run(on.handle(), product(normed_.data(), rows, w.gate_up, 2 * wide, config_.hidden_size, gate_up_.data()));
  gpu::swiglu(on.handle(), {shape_.type, gate_up_.data(), 2 * wide, gated_.data(), wide, rows, wide, false});
  mark(on, kernel_group::mlp_output);
  gpu::matmul_args down = product(gated_.data(), rows, w.down, config_.hidden_size, wide, hidden);
  down.residual = residual_of_rank(hidden);
  matmul_.run(on.handle(), down);
}

// What a rank has of hidden's rows becomes the sum of all ranks': the same bits on each.
void gpu_model::sum_over_ranks(const cuda::stream& on, std::int32_t rows) {
  if (tensor_ == nullptr) return;
  mark(on, kernel_group::collectives);
  if (takes_few_sums(rows)) return few_sums_->run({.part = hidden_.data(), .sum = hidden_.data(), .rows = rows});
  sum_by_library(on, 0, rows);
}

void gpu_model::sum_by_library(const cuda::stream& on, std::int32_t first, std::int32_t rows) {
  const std::size_t count = static_cast<std::size_t>(rows) * static_cast<std::size_t>(config_.hidden_size);
  std::byte* const from = hidden_.data() + static_cast<std::size_t>(first) * static_cast<std::size_t>(config_.hidden_size) * element;
  if (shape_.batch_invariant) return sum_in_order_of_ranks(on, from, count);
  tensor_->all_reduce({from, count, shape_.type}, on.handle());
}

const float* gpu_model::logits(const cuda::stream& on, std::int32_t first, std::int32_t count) {
  norm(on, hidden_.data(), weights_.final_norm, count, head_normed_.data(), rows_.head_rows + first);
  if (shape_.batch_invariant) {
    gpu::linear_to_f32(on.handle(),
                       any_rows(head_normed_.data(), count, weights_.head, shape_.ends.ids.places, config_.hidden_size, own_logits(count)));
    return whole_logits(on, count);
  }
  gpu::matmul_args head =
      product(head_normed_.data(), count, weights_.head, shape_.ends.ids.places, config_.hidden_size, own_logits(count));
  head.y_type = dtype::f32;
  matmul_.run(on.handle(), head);
  return whole_logits(on, count);
}

} // namespace troupe
