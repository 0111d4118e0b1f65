#include "models/shard.hpp"

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

#include "core/error.hpp"

namespace troupe {
namespace {

void require(bool holds, const std::string& what) {
  if (!holds) throw load_error(what);
}

std::string over_ranks(int tp_size) { return " over " + std::to_string(tp_size) + " tensor parallel ranks"; }

struct range {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

// As many layers as have the head's weights.
std::int64_t head_in_layers(const model_config& c) {
  const std::int64_t attention = 2 * std::int64_t{c.num_heads + c.num_kv_heads} * c.head_dim;
  const std::int64_t layer = attention + 3 * std::int64_t{c.intermediate_size}; // times hidden, as the head
  return (c.vocab_size + layer / 2) / layer;
}

// Even shares of layers and head, which reads as much memory in a decode step as so many layers; at least one layer for each stage.
range layers_of(const model_config& whole, const rank_context& rank) {
  const auto first_of = [&](int stage) {
    const std::int64_t even = (whole.num_layers + head_in_layers(whole)) * stage / rank.stages;
    return std::min(even, std::int64_t{whole.num_layers} - (rank.stages - stage));
  };
  const std::int64_t first = first_of(rank.stage);
  return {first, first_of(rank.stage + 1) - first};
}

weight_view rows_of(const weight_view& whole, range rows) {
  weight_view view = whole;
  view.rows = rows.count;
  if (whole) view.data = whole.row(rows.first);
  return view;
}

weight_view columns_of(const weight_view& whole, range columns, const std::string& name) {
  const dtype_traits type = traits(whole.type);
  require(columns.count % static_cast<std::int64_t>(type.block_elems) == 0,
          name + ": " + std::to_string(whole.columns) + " columns are " + std::to_string(columns.count) + " for each of " +
              std::to_string(whole.columns / columns.count) + " tensor parallel ranks, no whole number of " + std::string(type.name) +
              " blocks of " + std::to_string(type.block_elems));
  weight_view view = whole;
  view.columns = columns.count;
  view.stride = static_cast<std::size_t>(whole.row(1) - whole.row(0));
  view.data = whole.data + row_bytes(whole.type, static_cast<std::size_t>(columns.first));
  return view;
}

std::vector<float> part_of(const std::vector<float>& whole, range rows) {
  if (whole.empty()) return {};
  const auto begin = whole.begin() + rows.first;
  return {begin, begin + rows.count};
}

layer_weights shard_layer(const layer_weights& whole, const model_config& config, const model_config& mine, const rank_context& rank,
                          const std::string& name) {
  const std::int64_t head = config.head_dim;
  const range queries{rank.tp_rank * mine.num_heads * head, mine.num_heads * head};
  // Where ranks outnumber KV heads, neighbouring ranks hold the same one.
  const range keys{std::int64_t{rank.tp_rank} * config.num_kv_heads / rank.tp_size * head, mine.num_kv_heads * head};
  const range wide{std::int64_t{rank.tp_rank} * mine.intermediate_size, mine.intermediate_size};
  layer_weights out;
  out.attention_norm = whole.attention_norm;
  out.query = rows_of(whole.query, queries);
  out.key = rows_of(whole.key, keys);
  out.value = rows_of(whole.value, keys);
  out.query_bias = part_of(whole.query_bias, queries);
  out.key_bias = part_of(whole.key_bias, keys);
  out.value_bias = part_of(whole.value_bias, keys);
  if (rank.tp_rank == 0) out.output_bias = whole.output_bias; // once in the sum
  out.query_norm = whole.query_norm;
  out.key_norm = whole.key_norm;
  out.output = columns_of(whole.output, queries, name + "output projection");
  out.mlp_norm = whole.mlp_norm;
  out.gate = rows_of(whole.gate, wide);
  out.up = rows_of(whole.up, wide);
  out.down = columns_of(whole.down, wide, name + "down projection");
  return out;
}

std::size_t total_bytes(const model_weights& weights) {
  const bool tied = weights.embedding && weights.head && weights.embedding.data == weights.head.data;
  std::size_t total = bytes_of(weights.embedding) + (tied ? 0 : bytes_of(weights.head)) + weights.final_norm.size() * sizeof(float);
  for (const layer_weights& w : weights.layers) {
    for (const weight_view* view : {&w.query, &w.key, &w.value, &w.output, &w.gate, &w.up, &w.down}) total += bytes_of(*view);
    for (const std::vector<float>* vector :
         {&w.attention_norm, &w.query_bias, &w.key_bias, &w.value_bias, &w.output_bias, &w.query_norm, &w.key_norm, &w.mlp_norm}) {
      total += vector->size() * sizeof(float);
    }
  }
  return total;
}

} // namespace

vocab_slice slice_of_vocab(std::int32_t vocab, int tp_rank, int tp_size, std::int32_t places_of) {
  const std::int32_t whole = places_of * tp_size, places = (vocab + whole - 1) / whole * places_of;
  const std::int32_t first = std::min(vocab, tp_rank * places);
  return {first, std::min(places, vocab - first), places};
}

void check_shards(const model_config& c, int tp_size, int stages) {
  require(tp_size >= 1 && stages >= 1, "a group of " + std::to_string(tp_size) + " tensor parallel ranks in " + std::to_string(stages) +
                                           " stages: both must be at least 1");
  require(c.num_heads % tp_size == 0, std::to_string(c.num_heads) + " attention heads cannot be shared out evenly" + over_ranks(tp_size));
  require(c.num_kv_heads % tp_size == 0 || tp_size % c.num_kv_heads == 0,
          std::to_string(c.num_kv_heads) + " KV heads can be neither split nor repeated evenly" + over_ranks(tp_size));
  require(c.intermediate_size % tp_size == 0,
          "an intermediate width of " + std::to_string(c.intermediate_size) + " cannot be cut evenly" + over_ranks(tp_size));
  require(c.num_layers >= stages, std::to_string(c.num_layers) + " layers are too few for " + std::to_string(stages) + " pipeline stages");
}

model_config shard_config(const model_config& whole, const rank_context& rank) {
  check_shards(whole, rank.tp_size, rank.stages);
  const range layers = layers_of(whole, rank);
  model_config mine = whole;
  mine.num_heads /= rank.tp_size;
  mine.num_kv_heads = std::max(1, whole.num_kv_heads / rank.tp_size);
  mine.intermediate_size /= rank.tp_size;
  mine.num_layers = static_cast<std::int32_t>(layers.count);
  mine.first_sliding_layer = std::max(0, whole.first_sliding_layer - static_cast<std::int32_t>(layers.first));
  return mine;
}

std::string part_of(const rank_context& rank) {
  return "rank " + std::to_string(rank.tp_rank) + " of " + std::to_string(rank.tp_size) + ", stage " + std::to_string(rank.stage) + " of " +
         std::to_string(rank.stages);
}

model_weights shard_weights(const model_weights& whole, const rank_context& rank) {
  const vocab_slice vocab = slice_of_vocab(whole.config.vocab_size, rank.tp_rank, rank.tp_size);
  const range layers = layers_of(whole.config, rank);
  model_weights mine;
  mine.config = shard_config(whole.config, rank);
  if (rank.first_stage()) mine.embedding = rows_of(whole.embedding, {vocab.first, vocab.rows});
  for (std::int64_t i = layers.first; i < layers.first + layers.count; ++i) {
    mine.layers.push_back(
        shard_layer(whole.layers[static_cast<std::size_t>(i)], whole.config, mine.config, rank, "layer " + std::to_string(i) + ", "));
  }
  if (rank.last_stage()) {
    mine.final_norm = whole.final_norm;
    mine.head = rows_of(whole.head, {vocab.first, vocab.rows});
  }
  mine.storage = whole.storage;
  mine.source = whole.source;
  mine.source.part = part_of(rank);
  mine.total_bytes = total_bytes(mine);
  return mine;
}

} // namespace troupe
