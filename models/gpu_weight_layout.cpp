#include "models/gpu_weight_layout.hpp"

#include <algorithm>
#include <cstring>
#include <span>

#include "core/error.hpp"
#include "core/half.hpp"
#include "kernels/linear.hpp"

namespace troupe {
namespace {

constexpr std::size_t alignment = 256;
constexpr std::size_t staging_bytes = std::size_t{4} << 20; // of one copy

std::size_t bytes_of(std::int64_t rows, std::int64_t columns) { return static_cast<std::size_t>(rows * columns) * gpu_element_bytes; }

bool is_infinite(std::uint16_t half) { return (half & 0x7fffU) == 0x7c00U; }

// False when f16 cannot hold one.
bool narrow(std::span<const float> from, dtype type, std::uint16_t* to) {
  if (type == dtype::bf16) {
    std::transform(from.begin(), from.end(), to, float_to_bfloat16);
    return true;
  }
  std::transform(from.begin(), from.end(), to, float_to_half);
  return std::none_of(to, to + from.size(), is_infinite);
}

bool convert_row(const weight_piece& p, std::int64_t index, dtype type, std::uint16_t* to, std::vector<float>& row) {
  const std::int64_t from = p.source(index);
  if (p.matrix->type == type) {
    const std::int64_t stored = p.matrix->stored_columns(from);
    if (stored > 0) std::memcpy(to, p.matrix->row(from), bytes_of(1, stored));
    std::fill(to + stored, to + p.columns, std::uint16_t{0});
    return true;
  }
  cpu::dequantise_row(*p.matrix, from, row.data());
  return narrow(row, type, to);
}

} // namespace

std::size_t weight_piece::bytes() const { return bytes_of(rows, columns); }

std::int64_t weight_piece::source(std::int64_t row) const {
  if (interleaved_head == 0) return row;
  const std::int64_t inside = row % interleaved_head, half = interleaved_head / 2;
  return row - inside + (inside < half ? 2 * inside : 2 * (inside - half) + 1);
}

weight_layout::weight_layout(const model_config& config, const gpu_ends& ends, const model_weights* weights)
    : config_(config), ends_(ends) {
  const std::int64_t hidden = config.hidden_size;
  const bool shared = ends.embedding && ends.head && config.tied_head;
  if (ends.embedding) embedding_ = matrix(config.vocab_size, hidden, weights != nullptr ? &weights->embedding : nullptr);
  if (shared) add_places(ends.ids.first + ends.ids.places - config.vocab_size);
  for (std::int32_t i = 0; i < config.num_layers; ++i) {
    add_layer(weights != nullptr ? &weights->layers[static_cast<std::size_t>(i)] : nullptr);
  }
  if (!ends.head) return;
  final_norm_ = vector(hidden, dummy_spread::norm, weights != nullptr ? &weights->final_norm : nullptr);
  if (shared) {
    head_ = embedding_ + bytes_of(ends.ids.first, hidden);
  } else {
    head_ = matrix(ends.ids.rows, hidden, weights != nullptr ? &weights->head : nullptr);
    pieces_.back().rows_before = ends.ids.first;
    add_places(ends.ids.places - ends.ids.rows);
  }
}

gpu_weights weight_layout::at(std::byte* base, dtype type) const {
  gpu_weights out;
  out.type = type;
  if (ends_.embedding) out.embedding = base + embedding_;
  if (ends_.head) out.final_norm = base + final_norm_, out.head = base + head_;
  for (const layer_offsets& from : layers_) {
    gpu_layer_weights to;
    to.attention_norm = base + from.attention_norm;
    to.qkv = base + from.qkv;
    if (config_.query_key_value_bias) to.qkv_bias = base + from.qkv_bias;
    if (config_.query_key_norm) to.query_norm = base + from.query_norm, to.key_norm = base + from.key_norm;
    to.output = base + from.output;
    if (config_.output_bias) to.output_bias = base + from.output_bias;
    to.mlp_norm = base + from.mlp_norm;
    to.gate_up = base + from.gate_up;
    to.down = base + from.down;
    out.layers.push_back(to);
  }
  return out;
}

std::size_t weight_layout::add(weight_piece p, const piece_traits& its) {
  if (!its.joined) used_ = (used_ + alignment - 1) / alignment * alignment;
  p.offset = used_;
  p.interleaved_head = its.interleaved_head;
  p.padding_rows = its.padding_rows;
  p.padding_columns = its.padding_columns;
  used_ += p.bytes();
  pieces_.push_back(p);
  return p.offset;
}

// For rows of a vocabulary that there are not.
void weight_layout::add_places(std::int64_t rows) { used_ += bytes_of(std::max<std::int64_t>(0, rows), config_.hidden_size); }

std::size_t weight_layout::matrix(std::int64_t rows, std::int64_t columns, const weight_view* from, const piece_traits& its) {
  weight_piece p;
  p.rows = rows, p.columns = columns, p.matrix = from;
  return add(p, its);
}

std::size_t weight_layout::vector(std::int64_t size, dummy_spread dummy, const std::vector<float>* from, const piece_traits& its) {
  weight_piece p;
  p.rows = 1, p.columns = size, p.dummy = dummy, p.vector = from;
  return add(p, its);
}

void weight_layout::add_attention(layer_offsets& at, const layer_weights* w) {
  const model_config& c = config_;
  const std::int64_t hidden = c.hidden_size, head = c.head_dim, pairs = c.rope.interleaved ? head : 0;
  const std::int64_t queries = c.num_heads * head, query_padding = c.padding_heads * head;
  const std::int64_t keys = c.num_kv_heads * head, key_padding = c.padding_kv_heads * head;
  at.attention_norm = vector(hidden, dummy_spread::norm, w != nullptr ? &w->attention_norm : nullptr);
  at.qkv = matrix(queries, hidden, w != nullptr ? &w->query : nullptr, {.interleaved_head = pairs, .padding_rows = query_padding});
  matrix(keys, hidden, w != nullptr ? &w->key : nullptr, {.interleaved_head = pairs, .padding_rows = key_padding, .joined = true});
  matrix(keys, hidden, w != nullptr ? &w->value : nullptr, {.padding_rows = key_padding, .joined = true});
  if (c.query_key_value_bias) {
    at.qkv_bias = vector(queries, dummy_spread::bias, w != nullptr ? &w->query_bias : nullptr,
                         {.interleaved_head = pairs, .padding_columns = query_padding});
    vector(keys, dummy_spread::bias, w != nullptr ? &w->key_bias : nullptr,
           {.interleaved_head = pairs, .padding_columns = key_padding, .joined = true});
    vector(keys, dummy_spread::bias, w != nullptr ? &w->value_bias : nullptr, {.padding_columns = key_padding, .joined = true});
  }
  if (c.query_key_norm) {
    at.query_norm = vector(head, dummy_spread::norm, w != nullptr ? &w->query_norm : nullptr, {.interleaved_head = pairs});
    at.key_norm = vector(head, dummy_spread::norm, w != nullptr ? &w->key_norm : nullptr, {.interleaved_head = pairs});
  }
  at.output = matrix(hidden, queries, w != nullptr ? &w->output : nullptr, {.padding_columns = query_padding});
  if (c.output_bias) at.output_bias = vector(hidden, dummy_spread::bias, w != nullptr ? &w->output_bias : nullptr);
}

void weight_layout::add_layer(const layer_weights* w) {
  const std::int64_t hidden = config_.hidden_size, wide = config_.intermediate_size, padding = config_.padding_width;
  layer_offsets at;
  add_attention(at, w);
  at.mlp_norm = vector(hidden, dummy_spread::norm, w != nullptr ? &w->mlp_norm : nullptr);
  at.gate_up = matrix(wide, hidden, w != nullptr ? &w->gate : nullptr, {.padding_rows = padding});
  matrix(wide, hidden, w != nullptr ? &w->up : nullptr, {.padding_rows = padding, .joined = true});
  at.down = matrix(hidden, wide, w != nullptr ? &w->down : nullptr, {.padding_columns = padding});
  layers_.push_back(at);
}

std::size_t upload_job::offset() const { return from->offset + bytes_of(first, from->columns); }
std::size_t upload_job::bytes() const { return bytes_of(count, from->columns); }

std::vector<upload_job> upload_jobs(const std::vector<weight_piece>& pieces) {
  std::vector<upload_job> jobs;
  for (const weight_piece& p : pieces) {
    const std::int64_t room = std::max<std::int64_t>(1, static_cast<std::int64_t>(staging_bytes / gpu_element_bytes) / p.columns);
    for (std::int64_t row = 0; row < p.rows; row += room) jobs.push_back({&p, row, std::min(room, p.rows - row)});
  }
  return jobs;
}

void convert(const upload_job& job, dtype type, std::byte* to, std::vector<float>& row) {
  const weight_piece& p = *job.from;
  const auto width = static_cast<std::size_t>(p.columns);
  auto* out = reinterpret_cast<std::uint16_t*>(to);
  bool held = true;
  row.resize(width);
  if (p.vector != nullptr) {
    for (std::int64_t i = 0; i < p.columns; ++i) {
      row[static_cast<std::size_t>(i)] = (*p.vector)[static_cast<std::size_t>(p.source(i))];
    }
    held = narrow(row, type, out);
  } else {
    for (std::int64_t r = job.first; r < job.first + job.count; ++r, out += width) held = convert_row(p, r, type, out, row) && held;
  }
  if (!held) throw load_error("a weight is too large for F16; --dtype bf16 holds it");
}

} // namespace troupe
