// What one rank of a tensor and pipeline parallel group holds of a model. What is split how, and why: docs/distributed.md.
#pragma once

#include <cstdint>
#include <string>

#include "models/model.hpp"
#include "models/rank_context.hpp"

namespace troupe {

// The ids whose rows of the embedding and of the head a rank holds. The vocabulary is padded so that all ranks have places for as many,
// a multiple of `places_of`; the last ranks may lack rows, or have none.
struct vocab_slice {
  std::int32_t first = 0;
  std::int32_t rows = 0;   // that exist
  std::int32_t places = 0; // the same on every rank

  bool holds(token_id token) const { return token >= first && token < first + rows; }
};
vocab_slice slice_of_vocab(std::int32_t vocab, int tp_rank, int tp_size, std::int32_t places_of = 1);

// Throws load_error, with the numbers, for a model that cannot be cut into tp_size x stages.
void check_shards(const model_config& config, int tp_size, int stages);

// The rank's own numbers of heads, KV heads, intermediate width and layers: the same on all ranks of a stage, padding included. What all
// ranks share stays as it is, vocab_size too. `block`, a power of two: of the intermediate width, so many cannot be parted.
model_config shard_config(const model_config& whole, const rank_context& rank, std::int32_t block = 1);

// What heads a cut over tp_size ranks adds, in words: "9 attention heads to 12, 3 KV heads to 4"; empty where they come out even.
std::string added_heads(const model_config& whole, int tp_size);

// The name of the rank's part: "rank 1 of 2, stage 0 of 1", as weight_source has it.
std::string part_of(const rank_context& rank);

// Views into the memory of `whole`, of which nothing else is touched: rows of q, k, v, gate and up, columns of output and down, the rank's
// ids of embedding (on the first stage) and head (on the last one); what a rank lacks is an empty view. Its config is shard_config's, and
// what that says of padding is the views' padding: nowhere stored. Blocks of the down projection's type are not parted either.
// Throws load_error, with the numbers, where columns of a quantised matrix cannot be cut at a block's border.
model_weights shard_weights(const model_weights& whole, const rank_context& rank, std::int32_t block = 1);

} // namespace troupe
