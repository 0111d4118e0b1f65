#include "models/shard.hpp"

#include <gmock/gmock.h>

#include <cstring>

#include "core/error.hpp"
#include "kernels/linear.hpp"
#include "tests/models/group_testing.hpp"

namespace troupe {
namespace {

using ::testing::HasSubstr;

rank_context place(int tp_rank, int tp_size, int stage = 0, int stages = 1) { return {tp_rank, tp_size, stage, stages, nullptr, nullptr}; }

std::string refusal(const model_config& config, int tp_size, int stages) {
  try {
    check_shards(config, tp_size, stages);
    return {};
  } catch (const load_error& e) {
    return e.what();
  }
}

TEST(shard, ratios_that_cannot_work_are_refused_with_the_numbers) {
  model_config config = test::small_config(); // 4 heads, 2 KV heads, 80 wide, 4 layers
  for (const auto& [tp, pp] : {std::pair{1, 1}, {2, 1}, {4, 1}, {1, 4}, {4, 4}}) EXPECT_EQ(refusal(config, tp, pp), "");
  EXPECT_EQ(refusal(config, 3, 1), "2 KV heads cannot be repeated evenly over 3 tensor parallel ranks");
  EXPECT_EQ(refusal(config, 8, 1), "4 attention heads cannot be shared out over 8 tensor parallel ranks");
  EXPECT_EQ(refusal(config, 1, 5), "4 layers are too few for 5 pipeline stages");
  EXPECT_THAT(refusal(config, 0, 1), HasSubstr("0 tensor parallel ranks"));
  EXPECT_THAT(refusal(config, 1, -1), HasSubstr("-1 stages"));
  config.num_heads = 9;
  config.num_kv_heads = 3;
  for (const int tp : {2, 3, 6, 9}) EXPECT_EQ(refusal(config, tp, 1), "") << tp;
  EXPECT_EQ(refusal(config, 4, 1), "3 KV heads cannot be repeated evenly over 4 tensor parallel ranks");
  EXPECT_EQ(refusal(config, 12, 1), "9 attention heads cannot be shared out over 12 tensor parallel ranks");
}

TEST(shard, a_block_of_a_quantised_matrix_is_never_cut) {
  model_config config = test::small_config();
  config.hidden_size = 96;
  config.head_dim = 48; // 192 columns of output: 96 for each of two ranks, 48 for each of four
  config.intermediate_size = 128;
  const model_weights weights = make_dummy_weights(config, dtype::q4_0, 1);
  EXPECT_NO_THROW(shard_weights(weights, place(1, 2)));
  try {
    shard_weights(weights, place(3, 4));
    FAIL() << "a block was cut";
  } catch (const load_error& e) {
    EXPECT_STREQ(e.what(),
                 "layer 0, output projection: 192 columns are 48 for each of 4 tensor parallel ranks, no whole number of Q4_0 blocks "
                 "of 32");
  }
}

std::vector<float> floats_of(const weight_view& view, std::int64_t row) {
  std::vector<float> out(static_cast<std::size_t>(view.columns), 1e30F);
  cpu::dequantise_row(view, row, out.data());
  return out;
}

TEST(shard, every_element_belongs_to_one_rank_and_is_not_copied) {
  model_config config = test::small_config();
  config.query_key_value_bias = config.output_bias = config.query_key_norm = true;
  const model_weights whole = make_dummy_weights(config, dtype::f32, 1);
  const layer_weights& from = whole.layers[1];
  for (int rank = 0; rank < 2; ++rank) {
    const model_weights mine = shard_weights(whole, place(rank, 2));
    const layer_weights& to = mine.layers[1];
    ASSERT_EQ(to.query.rows, 24);
    EXPECT_EQ(to.query.data, from.query.row(24 * rank)); // heads 2 rank, 2 rank + 1
    ASSERT_EQ(to.key.rows, 12);
    EXPECT_EQ(to.key.data, from.key.row(12 * rank));
    EXPECT_EQ(to.value.data, from.value.row(12 * rank));
    EXPECT_EQ(to.gate.data, from.gate.row(40 * rank));
    EXPECT_EQ(to.up.data, from.up.row(40 * rank));
    for (std::int64_t row = 0; row < config.hidden_size; ++row) {
      const auto offset = static_cast<std::size_t>(rank);
      EXPECT_EQ(floats_of(to.output, row), test::part_of_row(floats_of(from.output, row), offset * 24, 24));
      EXPECT_EQ(floats_of(to.down, row), test::part_of_row(floats_of(from.down, row), offset * 40, 40));
    }
    EXPECT_EQ(to.query_bias, test::part_of_row(from.query_bias, static_cast<std::size_t>(rank) * 24, 24));
    EXPECT_EQ(to.key_bias, test::part_of_row(from.key_bias, static_cast<std::size_t>(rank) * 12, 12));
    EXPECT_EQ(to.output_bias, rank == 0 ? from.output_bias : std::vector<float>());
    EXPECT_EQ(to.query_norm, from.query_norm);
    EXPECT_EQ(mine.embedding.data, whole.embedding.row(102 * rank)); // 203 ids: 102 and 101
    EXPECT_EQ(mine.embedding.rows, 102 - rank);
    EXPECT_EQ(mine.head.rows, 102 - rank);
  }
}

// What of `row` lies in places first .., of which those beyond its end are zeros.
std::vector<float> places_of(const std::vector<float>& row, std::size_t first, std::size_t count) {
  std::vector<float> out(count, 0.0F);
  for (std::size_t i = 0; i < count && first + i < row.size(); ++i) out[i] = row[first + i];
  return out;
}

// Rows of `part`, a rank's, are those of `whole` from `first` on, and then zeros.
void expect_rows(const weight_view& part, const weight_view& whole, std::int64_t first) {
  for (std::int64_t r = 0; r < part.rows; ++r) {
    EXPECT_EQ(floats_of(part, r),
              first + r < whole.rows ? floats_of(whole, first + r) : std::vector<float>(static_cast<std::size_t>(whole.columns), 0.0F))
        << "row " << r;
  }
}

TEST(shard, what_does_not_come_out_even_is_padded_with_zeros_on_the_last_ranks) {
  model_config config = test::small_config();
  config.num_heads = 15;
  config.num_kv_heads = 5;       // 2 for each of four ranks: 2, 2, 1 and none
  config.intermediate_size = 90; // 24 for each: 24, 24, 24 and 18
  config.query_key_value_bias = true;
  const model_weights whole = make_dummy_weights(config, dtype::f32, 1);
  EXPECT_EQ(added_heads(config, 4), "15 attention heads to 24, 5 KV heads to 8");
  const layer_weights& from = whole.layers[0];
  for (int rank = 0; rank < 4; ++rank) {
    const model_weights mine = shard_weights(whole, place(rank, 4));
    EXPECT_EQ(mine.config.num_heads, 6);
    EXPECT_EQ(mine.config.num_kv_heads, 2);
    EXPECT_EQ(mine.config.intermediate_size, 24);
    EXPECT_EQ(mine.config.padding_kv_heads, std::max(0, rank - 1));
    EXPECT_EQ(mine.config.padding_heads, 3 * std::max(0, rank - 1));
    EXPECT_EQ(mine.config.padding_width, rank == 3 ? 6 : 0);
    const layer_weights& to = mine.layers[0];
    const auto n = static_cast<std::size_t>(rank);
    expect_rows(to.query, from.query, 72 * rank);
    expect_rows(to.key, from.key, 24 * rank);
    expect_rows(to.value, from.value, 24 * rank);
    expect_rows(to.gate, from.gate, 24 * rank);
    expect_rows(to.up, from.up, 24 * rank);
    EXPECT_EQ(to.query_bias, places_of(from.query_bias, 72 * n, 72));
    EXPECT_EQ(to.key_bias, places_of(from.key_bias, 24 * n, 24));
    EXPECT_EQ(to.value_bias, places_of(from.value_bias, 24 * n, 24));
    for (std::int64_t row = 0; row < config.hidden_size; ++row) {
      EXPECT_EQ(floats_of(to.output, row), places_of(floats_of(from.output, row), 72 * n, 72));
      EXPECT_EQ(floats_of(to.down, row), places_of(floats_of(from.down, row), 24 * n, 24));
    }
  }
}

TEST(shard, query_heads_of_a_repeated_kv_head_are_padded_for_each_of_them) {
  model_config config = test::small_config();
  config.num_heads = 14; // 7 of a KV head for two ranks: 4 and 3
  const model_weights whole = make_dummy_weights(config, dtype::f32, 1);
  EXPECT_EQ(added_heads(config, 4), "14 attention heads to 16");
  for (int rank = 0; rank < 4; ++rank) {
    const model_weights mine = shard_weights(whole, place(rank, 4));
    EXPECT_EQ(mine.config.num_heads, 4);
    EXPECT_EQ(mine.config.num_kv_heads, 1);
    EXPECT_EQ(mine.config.padding_heads, rank % 2);
    EXPECT_EQ(mine.config.padding_kv_heads, 0);
    const layer_weights& from = whole.layers[0];
    const layer_weights& to = mine.layers[0];
    EXPECT_EQ(to.key.data, from.key.row(12 * (rank / 2)));
    const std::int64_t first = 12 * (7 * (rank / 2) + 4 * (rank % 2)), stored = rank % 2 == 0 ? 48 : 36;
    EXPECT_EQ(to.query.data, from.query.row(first));
    const auto zeros = [&](std::vector<float> row) {
      std::fill(row.begin() + stored, row.end(), 0.0F);
      return row;
    };
    for (std::int64_t r = stored; r < 48; ++r) EXPECT_EQ(floats_of(to.query, r), std::vector<float>(48, 0.0F));
    for (std::int64_t r = 0; r < config.hidden_size; ++r) {
      EXPECT_EQ(floats_of(to.output, r), zeros(places_of(floats_of(from.output, r), static_cast<std::size_t>(first), 48)));
    }
  }
}

TEST(shard, a_width_is_padded_to_whole_blocks) {
  model_config config = test::small_config();
  config.hidden_size = 256;
  config.head_dim = 128;
  config.intermediate_size = 1280; // five blocks of 256
  const auto widths = [&](dtype type) {
    std::vector<std::int32_t> stored;
    for (int rank = 0; rank < 2; ++rank) {
      const model_config mine = shard_weights(make_dummy_weights(config, type, 1), place(rank, 2)).config;
      stored.push_back(mine.intermediate_size - mine.padding_width);
    }
    return stored;
  };
  using sizes = std::vector<std::int32_t>;
  EXPECT_EQ(widths(dtype::q4_k), (sizes{768, 512}));
  for (const dtype type : {dtype::q4_1, dtype::bf16}) EXPECT_EQ(widths(type), (sizes{640, 640}));
  config.intermediate_size = 1248; // 39 blocks of 32
  EXPECT_EQ(widths(dtype::q4_1), (sizes{640, 608}));
  EXPECT_EQ(widths(dtype::bf16), (sizes{624, 624}));
}

TEST(shard, ranks_beyond_the_kv_heads_repeat_them) {
  const model_weights whole = make_dummy_weights(test::small_config(), dtype::f32, 1);
  for (int rank = 0; rank < 4; ++rank) {
    const model_weights mine = shard_weights(whole, place(rank, 4));
    EXPECT_EQ(mine.config.num_heads, 1);
    EXPECT_EQ(mine.config.num_kv_heads, 1);
    EXPECT_EQ(mine.layers[0].key.data, whole.layers[0].key.row(12 * (rank / 2)));
  }
}

TEST(shard, a_stage_has_its_layers_and_the_ends_of_the_model_are_at_the_ends) {
  model_config config = test::small_config();
  config.num_layers = 5;
  config.sliding_window = 4;
  config.first_sliding_layer = 3;
  config.tied_head = true;
  const model_weights whole = make_dummy_weights(config, dtype::f32, 1);
  const std::vector<std::pair<std::int32_t, std::int32_t>> layers = {{0, 2}, {2, 2}, {4, 1}}; // first, count; the head is as large as one
  for (int stage = 0; stage < 3; ++stage) {
    const model_weights mine = shard_weights(whole, place(0, 1, stage, 3));
    const auto [first, count] = layers[static_cast<std::size_t>(stage)];
    ASSERT_EQ(mine.layers.size(), static_cast<std::size_t>(count));
    EXPECT_EQ(mine.config.num_layers, count);
    EXPECT_EQ(mine.layers[0].query.data, whole.layers[static_cast<std::size_t>(first)].query.data);
    EXPECT_EQ(mine.config.first_sliding_layer, std::max(0, 3 - first));
    EXPECT_EQ(static_cast<bool>(mine.embedding), stage == 0);
    EXPECT_EQ(static_cast<bool>(mine.head), stage == 2);
    EXPECT_EQ(mine.final_norm.empty(), stage != 2);
  }
}

TEST(shard, the_head_counts_as_layers_but_every_stage_has_one) {
  model_config config = test::small_config();
  const auto counts = [&](std::int32_t layers, std::int32_t vocab, int stages) {
    config.num_layers = layers;
    config.vocab_size = vocab;
    std::vector<std::int32_t> out;
    for (int stage = 0; stage < stages; ++stage) out.push_back(shard_config(config, place(0, 1, stage, stages)).num_layers);
    return out;
  };
  using layers = std::vector<std::int32_t>;
  EXPECT_EQ(counts(30, 384 * 8, 2), (layers{19, 11})); // a layer has 384 rows of the hidden size, all in all
  EXPECT_EQ(counts(30, 384 * 8, 3), (layers{12, 13, 5}));
  EXPECT_EQ(counts(32, 16, 4), (layers{8, 8, 8, 8}));
  EXPECT_EQ(counts(7, 16, 3), (layers{2, 2, 3}));
  EXPECT_EQ(counts(4, 384 * 100, 2), (layers{3, 1}));
  EXPECT_EQ(counts(4, 384 * 100, 4), (layers{1, 1, 1, 1}));
}

TEST(shard, the_vocabulary_is_padded_to_places_for_all) {
  std::vector<std::int32_t> rows;
  for (int rank = 0; rank < 4; ++rank) {
    const vocab_slice slice = slice_of_vocab(5, rank, 4);
    EXPECT_EQ(slice.places, 2);
    rows.push_back(slice.rows);
  }
  EXPECT_EQ(rows, (std::vector<std::int32_t>{2, 2, 1, 0}));
}

TEST(shard, all_shards_together_are_as_large_as_the_whole_but_for_what_is_repeated) {
  model_config config = test::small_config();
  const model_weights whole = make_dummy_weights(config, dtype::f32, 1);
  std::size_t total = 0;
  for (int rank = 0; rank < 4; ++rank) total += shard_weights(whole, place(rank % 2, 2, rank / 2, 2)).total_bytes;
  const std::size_t norms = sizeof(float) * static_cast<std::size_t>((2 * config.num_layers + 1) * config.hidden_size);
  EXPECT_EQ(total, whole.total_bytes + norms); // each norm on two ranks
}

} // namespace
} // namespace troupe
