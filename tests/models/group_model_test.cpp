// A model cut into a group computes what it computes whole. Stages change nothing at all; sums over ranks change the order of additions.
#include "core/error.hpp"
#include "models/shard.hpp"
#include "tests/models/group_testing.hpp"
#include "tests/models/padded_testing.hpp"

namespace troupe {
namespace {

using test::group_logits;
using test::group_shape;
using test::worst_difference;

// Of the largest logit, for f32 weights. Each sum over K products of a row becomes as many sums as there are ranks, which moves it by some
// sqrt(K) units of 2^-24 of its terms; over the layers of a tiny model that stays below this.
constexpr double kRounding = 1e-5;
// For quantised weights activations are rounded to 8 bits per 32 (or 256) columns: the last bit of a sum may move one to its neighbour,
// 1 / 127 of the largest in its block.
constexpr double kQuantRounding = 3e-2;

constexpr group_shape kShapes[] = {{2, 1}, {4, 1}, {1, 2}, {2, 2}, {4, 2}};

class group_model_of_family : public ::testing::TestWithParam<const char*> {};

TEST_P(group_model_of_family, logits_are_those_of_the_whole_model_and_of_transformers) {
  const auto weights = test::tiny_weights(GetParam());
  const test::expected_prompt prompt = test::expected_prompts(GetParam())[3];
  const std::vector<float> whole = group_logits(*weights, {1, 1}, prompt.tokens);
  for (const group_shape& shape : kShapes) {
    const std::vector<float> cut = group_logits(*weights, shape, prompt.tokens, 17);
    EXPECT_LT(worst_difference(cut, whole), kRounding) << shape;
    EXPECT_LT(worst_difference(cut, prompt.logits), 2e-4) << shape;
    EXPECT_EQ(cut == group_logits(*weights, {shape.tp_size, 1}, prompt.tokens), true) << shape;
  }
}

INSTANTIATE_TEST_SUITE_P(families, group_model_of_family, ::testing::ValuesIn(test::tiny_models), [](const auto& tested) {
  std::string name = tested.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

class group_model_of_type : public ::testing::TestWithParam<dtype> {};

TEST_P(group_model_of_type, columns_are_cut_at_the_borders_of_blocks) {
  model_config config = test::small_config();
  config.hidden_size = 256;
  config.head_dim = config.rope.rotary_dim = 256; // two heads: 512 columns of the output projection
  config.num_heads = 2;
  config.num_kv_heads = 1;
  config.intermediate_size = 512;
  config.num_layers = 2;
  config.tied_head = true;
  const model_weights weights = make_dummy_weights(config, GetParam(), 3);
  const std::vector<token_id> tokens = test::random_tokens(40, config.vocab_size, 1);
  const std::vector<float> whole = group_logits(weights, {1, 1}, tokens);
  const double bound = is_quantised(GetParam()) ? kQuantRounding : kRounding;
  EXPECT_LT(worst_difference(group_logits(weights, {2, 1}, tokens, 9), whole), bound);
  EXPECT_EQ(group_logits(weights, {1, 2}, tokens, 9) == whole, true);
}

TEST_P(group_model_of_type, columns_are_padded_by_whole_blocks) {
  model_config config = test::small_config();
  config.hidden_size = 256;
  config.head_dim = config.rope.rotary_dim = 128;
  config.num_heads = 6;
  config.num_kv_heads = 3; // 768 columns of the output projection: 512, and 256 beside as many of zeros
  config.intermediate_size = 768;
  config.num_layers = 2;
  const model_weights weights = make_dummy_weights(config, GetParam(), 3);
  const std::vector<token_id> tokens = test::random_tokens(40, config.vocab_size, 1);
  const double bound = is_quantised(GetParam()) ? kQuantRounding : kRounding;
  EXPECT_LT(worst_difference(group_logits(weights, {2, 1}, tokens, 9), group_logits(weights, {1, 1}, tokens)), bound);
}

INSTANTIATE_TEST_SUITE_P(types, group_model_of_type,
                         ::testing::Values(dtype::f32, dtype::f16, dtype::bf16, dtype::q4_0, dtype::q4_1, dtype::q5_0, dtype::q5_1,
                                           dtype::q8_0, dtype::q4_k, dtype::q5_k, dtype::q6_k),
                         [](const auto& tested) { return std::string(traits(tested.param).name); });

struct head_case {
  const char* name;
  std::int32_t heads, kv_heads;
  group_shape shape;
  bool biases = false, norms = false, window = false;
};

class group_model_of_heads : public ::testing::TestWithParam<head_case> {};

TEST_P(group_model_of_heads, what_does_not_come_out_even_adds_nothing) {
  const head_case& heads = GetParam();
  model_config config = test::small_config();
  config.num_heads = heads.heads;
  config.num_kv_heads = heads.kv_heads;
  config.query_key_value_bias = config.output_bias = heads.biases;
  config.query_key_norm = heads.norms;
  if (heads.window) config.sliding_window = 9;
  ASSERT_NE(added_heads(config, heads.shape.tp_size), "");
  for (const std::int32_t width : {80, 82}) {
    config.intermediate_size = width;
    const model_weights weights = make_dummy_weights(config, dtype::f32, 7);
    const std::vector<token_id> tokens = test::random_tokens(50, config.vocab_size, 2);
    const std::vector<float> whole = group_logits(weights, {1, 1}, tokens), cut = group_logits(weights, heads.shape, tokens, 17);
    EXPECT_LT(worst_difference(cut, whole), kRounding) << width << " wide";
    EXPECT_EQ(cut == group_logits(weights, {heads.shape.tp_size, 1}, tokens, 50), true) << "chunks or stages change it";
  }
}

TEST(group_model, padding_gives_the_bits_of_zeros_that_are_stored) {
  model_config config = test::small_config();
  config.num_heads = 10;
  config.num_kv_heads = 5;       // for four ranks: two each
  config.intermediate_size = 90; // 24 each
  config.query_key_value_bias = config.query_key_norm = true;
  for (const dtype type : {dtype::f32, dtype::f16}) {
    const model_weights weights = make_dummy_weights(config, type, 7), written = test::with_zeros(weights, {8, 96});
    const std::vector<token_id> tokens = test::random_tokens(50, config.vocab_size, 2);
    EXPECT_EQ(group_logits(weights, {4, 1}, tokens, 17) == group_logits(written, {4, 1}, tokens, 17), true) << traits(type).name;
    EXPECT_LT(worst_difference(group_logits(written, {1, 1}, tokens), group_logits(weights, {1, 1}, tokens)), kRounding);
  }
}

INSTANTIATE_TEST_SUITE_P(heads, group_model_of_heads,
                         ::testing::Values(head_case{"nine_of_three", 9, 3, {2, 1}}, head_case{"in_stages", 9, 3, {2, 2}},
                                           head_case{"biases", 9, 3, {2, 1}, true}, head_case{"norms", 9, 3, {2, 1}, true, true},
                                           head_case{"window", 9, 3, {2, 1}, false, false, true}, head_case{"pairs", 6, 3, {2, 1}},
                                           head_case{"one_each", 5, 5, {2, 1}, true}, head_case{"a_rank_without", 5, 5, {4, 1}, true, true},
                                           head_case{"repeated", 14, 2, {4, 1}, true, true},
                                           head_case{"repeated_thrice", 15, 3, {9, 1}, true}, head_case{"of_one", 7, 1, {4, 2}}),
                         [](const auto& tested) { return std::string(tested.param.name); });

struct random_model {
  explicit random_model(std::uint32_t seed) : random(seed) {
    config.num_kv_heads = pick(1, 5);
    config.num_heads = config.num_kv_heads * pick(1, 4);
    config.head_dim = 2 * pick(1, 9);
    config.rope.rotary_dim = one_in(3) ? 2 * pick(1, config.head_dim / 2) : config.head_dim;
    config.rope.interleaved = one_in(2);
    config.hidden_size = pick(3, 40);
    config.intermediate_size = one_in(4) ? pick(1, 50) : 12 * pick(1, 5);
    config.num_layers = pick(1, 6);
    config.vocab_size = one_in(4) ? pick(2, 9) : pick(10, 300);
    config.tied_head = one_in(2);
    config.query_key_value_bias = one_in(2);
    config.output_bias = one_in(2);
    config.query_key_norm = one_in(3);
    if (one_in(2)) config.sliding_window = pick(1, 20);
    config.first_sliding_layer = one_in(2) ? 0 : pick(0, config.num_layers);
    shape = {pick(1, 8), pick(1, 4)};
  }
  int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); }
  bool one_in(int n) { return pick(1, n) == 1; }
  bool can_be_cut() const {
    const std::int32_t ranks = shape.tp_size, kv_heads = config.num_kv_heads;
    return shape.stages <= config.num_layers && ranks <= config.num_heads && (ranks <= kv_heads || ranks / kv_heads * kv_heads == ranks);
  }

  std::mt19937 random;
  model_config config = test::small_config();
  group_shape shape;
};

TEST(group_model, any_shape_that_can_be_cut_gives_the_logits_of_the_whole_and_others_are_refused) {
  int cut = 0, refused = 0, repeated = 0, padded = 0, without_ids = 0;
  double worst = 0;
  for (std::uint32_t seed = 1; seed <= 400; ++seed) {
    random_model m(seed);
    if (!m.can_be_cut()) {
      EXPECT_THROW(check_shards(m.config, m.shape.tp_size, m.shape.stages), load_error) << "seed " << seed;
      ++refused;
      continue;
    }
    const model_weights weights = make_dummy_weights(m.config, dtype::f32, seed);
    const std::vector<token_id> tokens = test::random_tokens(static_cast<std::size_t>(m.pick(1, 40)), m.config.vocab_size, seed);
    const std::vector<float> whole = group_logits(weights, {1, 1}, tokens);
    const double apart = worst_difference(group_logits(weights, m.shape, tokens, static_cast<std::size_t>(m.pick(1, 40))), whole);
    EXPECT_LT(apart, kRounding) << "seed " << seed << ", " << m.shape;
    worst = std::max(worst, apart);
    ++cut;
    if (m.shape.tp_size > m.config.num_kv_heads) ++repeated;
    if (!added_heads(m.config, m.shape.tp_size).empty()) ++padded;
    if (slice_of_vocab(m.config.vocab_size, m.shape.tp_size - 1, m.shape.tp_size).rows == 0) ++without_ids;
  }
  EXPECT_GT(cut, 50);
  EXPECT_GT(refused, 50);
  EXPECT_GT(repeated, 10);
  EXPECT_GT(padded, 30);
  EXPECT_GT(without_ids, 0);
  RecordProperty("worst_share_of_the_largest_logit", std::to_string(worst));
}

} // namespace
} // namespace troupe
