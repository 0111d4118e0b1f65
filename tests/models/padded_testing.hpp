// A model whose padding is written down: heads of zeros, and zeros in the intermediate width. It computes what it computes without them.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "models/model.hpp"

namespace troupe::test {

struct padded_sizes {
  std::int32_t kv_heads, intermediate_size;
};

// `whole` with more KV heads, each with as many query heads as the others have, and wider layers.
inline model_weights with_zeros(const model_weights& whole, padded_sizes sizes) {
  auto storage = std::make_shared<std::vector<std::vector<std::byte>>>();
  const auto grow = [&](weight_view& view, std::int64_t rows, std::int64_t columns) {
    const auto width = [&](std::int64_t elements) { return row_bytes(view.type, static_cast<std::size_t>(elements)); };
    std::vector<std::byte> bytes(static_cast<std::size_t>(rows) * width(columns));
    for (std::int64_t r = 0; r < view.rows; ++r) {
      std::copy_n(view.row(r), width(view.columns), bytes.data() + static_cast<std::size_t>(r) * width(columns));
    }
    storage->push_back(std::move(bytes));
    view = {view.type, rows, columns, storage->back().data()};
  };
  model_weights out = whole;
  model_config& c = out.config;
  c.num_heads = c.num_heads / c.num_kv_heads * sizes.kv_heads;
  c.num_kv_heads = sizes.kv_heads;
  c.intermediate_size = sizes.intermediate_size;
  const std::int64_t queries = std::int64_t{c.num_heads} * c.head_dim, keys = std::int64_t{c.num_kv_heads} * c.head_dim;
  for (layer_weights& w : out.layers) {
    grow(w.query, queries, c.hidden_size);
    grow(w.key, keys, c.hidden_size);
    grow(w.value, keys, c.hidden_size);
    grow(w.output, c.hidden_size, queries);
    grow(w.gate, c.intermediate_size, c.hidden_size);
    grow(w.up, c.intermediate_size, c.hidden_size);
    grow(w.down, c.hidden_size, c.intermediate_size);
    if (c.query_key_value_bias) {
      w.query_bias.resize(static_cast<std::size_t>(queries));
      w.key_bias.resize(static_cast<std::size_t>(keys));
      w.value_bias.resize(static_cast<std::size_t>(keys));
    }
  }
  out.storage = std::make_shared<std::pair<std::shared_ptr<const void>, std::shared_ptr<const void>>>(whole.storage, storage);
  return out;
}

} // namespace troupe::test
