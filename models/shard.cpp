#include "models/shard.hpp"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string>
#include <string_view>

#include "core/error.hpp"

namespace troupe {
namespace {

void require(bool holds, const std::string& what) {
  if (!holds) throw load_error(what);
}

std::string over_ranks(int tp_size) { return " over " + std::to_string(tp_size) + " tensor parallel ranks"; }

// Of what is cut: `count` that there are, and behind them padding, so that all ranks have as many places.
struct range {
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::int64_t padding = 0;

  std::int64_t places() const { return count + padding; }
  range times(std::int64_t each) const { return {first * each, count * each, padding * each}; }
};

// Part `index` of `parts`, all with as many places, a multiple of `places_of`. The last ones may lack some, or have nothing at all.
range share_of(std::int64_t whole, int index, int parts, std::int64_t places_of = 1) {
  const std::int64_t round = places_of * parts, places = (whole + round - 1) / round * places_of;
  const std::int64_t first = std::min(whole, index * places), count = std::min(places, whole - first);
  return {first, count, places - count};
}

// What a rank has of every layer.
struct layer_cut {
  range queries, keys; // heads
  range wide;          // of the intermediate width
};

// Each rank has the query heads that belong to its KV heads. Where ranks outnumber KV heads, neighbouring ranks have the same one, and
// share out its query heads.
layer_cut cut_of(const model_config& c, int tp_rank, int tp_size, std::int32_t block) {
  const std::int64_t queries = c.num_heads / c.num_kv_heads; // of a KV head
  const std::int64_t width = c.intermediate_size;
  const bool even = width % (std::int64_t{tp_size} * block) == 0;
  layer_cut cut;
  cut.wide = share_of(width, tp_rank, tp_size, even ? 1 : std::max<std::int64_t>(block, std::gcd(width, 32))); // 32: rows stay aligned
  if (tp_size <= c.num_kv_heads) {
    cut.keys = share_of(c.num_kv_heads, tp_rank, tp_size);
    cut.queries = cut.keys.times(queries);
  } else {
    const int ranks = tp_size / c.num_kv_heads, kv_head = tp_rank / ranks;
    cut.keys = {kv_head, 1};
    cut.queries = share_of(queries, tp_rank % ranks, ranks);
    cut.queries.first += kv_head * queries;
  }
  return cut;
}

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
  view.rows = rows.places();
  view.padding_rows = rows.padding;
  if (whole) view.data = whole.row(rows.first);
  return view;
}

weight_view columns_of(const weight_view& whole, range columns, int tp_size, const std::string& name) {
  const dtype_traits type = traits(whole.type);
  const auto whole_blocks = [&](std::int64_t elements) { return elements % static_cast<std::int64_t>(type.block_elems) == 0; };
  require(whole_blocks(columns.first) && whole_blocks(columns.count) && whole_blocks(columns.padding),
          name + ": " + std::to_string(whole.columns) + " columns are " + std::to_string(columns.places()) + " for each of " +
              std::to_string(tp_size) + " tensor parallel ranks, no whole number of " + std::string(type.name) + " blocks of " +
              std::to_string(type.block_elems));
  weight_view view = whole;
  view.columns = columns.places();
  view.padding_columns = columns.padding;
  view.stride = static_cast<std::size_t>(whole.row(1) - whole.row(0));
  view.data = whole.data + row_bytes(whole.type, static_cast<std::size_t>(columns.first));
  return view;
}

std::vector<float> part_of(const std::vector<float>& whole, range rows) {
  if (whole.empty()) return {};
  const auto begin = whole.begin() + rows.first;
  std::vector<float> part(begin, begin + rows.count);
  part.resize(static_cast<std::size_t>(rows.places()), 0.0F);
  return part;
}

// Elements that cannot be parted, of the rows of all down projections.
std::int32_t block_of_down(const model_weights& weights) {
  std::size_t block = 1;
  for (const layer_weights& w : weights.layers) block = std::max(block, traits(w.down.type).block_elems);
  return static_cast<std::int32_t>(block);
}

layer_weights shard_layer(const layer_weights& whole, const layer_cut& cut, const model_config& config, const rank_context& rank,
                          const std::string& name) {
  const range queries = cut.queries.times(config.head_dim), keys = cut.keys.times(config.head_dim);
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
  out.output = columns_of(whole.output, queries, rank.tp_size, name + "output projection");
  out.mlp_norm = whole.mlp_norm;
  out.gate = rows_of(whole.gate, cut.wide);
  out.up = rows_of(whole.up, cut.wide);
  out.down = columns_of(whole.down, cut.wide, rank.tp_size, name + "down projection");
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
  const range ids = share_of(vocab, tp_rank, tp_size, places_of);
  return {static_cast<std::int32_t>(ids.first), static_cast<std::int32_t>(ids.count), static_cast<std::int32_t>(ids.places())};
}

void check_shards(const model_config& c, int tp_size, int stages) {
  require(tp_size >= 1 && stages >= 1, "a group of " + std::to_string(tp_size) + " tensor parallel ranks in " + std::to_string(stages) +
                                           " stages: both must be at least 1");
  require(c.num_heads >= tp_size, std::to_string(c.num_heads) + " attention heads cannot be shared out" + over_ranks(tp_size));
  require(c.num_kv_heads >= tp_size || tp_size % c.num_kv_heads == 0,
          std::to_string(c.num_kv_heads) + " KV heads cannot be repeated evenly" + over_ranks(tp_size));
  require(c.num_layers >= stages, std::to_string(c.num_layers) + " layers are too few for " + std::to_string(stages) + " pipeline stages");
}

model_config shard_config(const model_config& whole, const rank_context& rank, std::int32_t block) {
  check_shards(whole, rank.tp_size, rank.stages);
  const range layers = layers_of(whole, rank);
  const layer_cut cut = cut_of(whole, rank.tp_rank, rank.tp_size, block);
  model_config mine = whole;
  const auto set = [](std::int32_t& places, std::int32_t& padding, const range& from) {
    places = static_cast<std::int32_t>(from.places());
    padding = static_cast<std::int32_t>(from.padding);
  };
  set(mine.num_heads, mine.padding_heads, cut.queries);
  set(mine.num_kv_heads, mine.padding_kv_heads, cut.keys);
  set(mine.intermediate_size, mine.padding_width, cut.wide);
  mine.num_layers = static_cast<std::int32_t>(layers.count);
  mine.first_sliding_layer = std::max(0, whole.first_sliding_layer - static_cast<std::int32_t>(layers.first));
  return mine;
}

std::string added_heads(const model_config& whole, int tp_size) {
  const layer_cut cut = cut_of(whole, 0, tp_size, 1);
  std::string text;
  const auto tell = [&](std::int64_t there, const range& first, const char* what) {
    const std::int64_t places = first.places() * tp_size;
    if (places > there) text += (text.empty() ? "" : ", ") + std::to_string(there) + " " + what + " to " + std::to_string(places);
  };
  tell(whole.num_heads, cut.queries, "attention heads");
  if (tp_size <= whole.num_kv_heads) tell(whole.num_kv_heads, cut.keys, "KV heads");
  return text;
}

std::string part_of(const rank_context& rank) {
  return "rank " + std::to_string(rank.tp_rank) + " of " + std::to_string(rank.tp_size) + ", stage " + std::to_string(rank.stage) + " of " +
         std::to_string(rank.stages);
}

model_weights shard_weights(const model_weights& whole, const rank_context& rank, std::int32_t block) {
  const vocab_slice vocab = slice_of_vocab(whole.config.vocab_size, rank.tp_rank, rank.tp_size);
  const range layers = layers_of(whole.config, rank);
  block = std::max(block, block_of_down(whole));
  model_weights mine;
  mine.config = shard_config(whole.config, rank, block);
  const layer_cut cut = cut_of(whole.config, rank.tp_rank, rank.tp_size, block);
  if (rank.first_stage()) mine.embedding = rows_of(whole.embedding, {vocab.first, vocab.rows});
  for (std::int64_t i = layers.first; i < layers.first + layers.count; ++i) {
    mine.layers.push_back(
        shard_layer(whole.layers[static_cast<std::size_t>(i)], cut, whole.config, rank, "layer " + std::to_string(i) + ", "));
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
