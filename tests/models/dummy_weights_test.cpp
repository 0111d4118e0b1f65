#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "models/checkpoint.hpp"
#include "tests/models/file_builders.hpp"

namespace troupe {
namespace {

using test_files::load_failure;
using testing::HasSubstr;

model_config small_config(const std::string& family = "llama") {
  model_config config;
  config.family = family;
  config.vocab_size = 1000;
  config.hidden_size = 256;
  config.intermediate_size = 512;
  config.num_layers = 2;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 64;
  config.rope.rotary_dim = 64;
  config.max_position = 128;
  return config;
}

bool same(const weight_view& a, const weight_view& b) {
  return bytes_of(a) == bytes_of(b) && std::memcmp(a.data, b.data, bytes_of(a)) == 0;
}

float f16_at(const std::byte* at) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, at, 2);
  const float magnitude = (bits & 0x7c00) != 0 ? std::ldexp(static_cast<float>((bits & 0x3ff) | 0x400), ((bits >> 10) & 31) - 25)
                                               : std::ldexp(static_cast<float>(bits & 0x3ff), -24);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

// Six-bit scale and minimum number j of a Q4_K or Q5_K block (ggml-common.h, block_q4_K: packed in 12 bytes).
std::pair<float, float> k_scale(const std::byte* packed, int j) {
  const auto at = [&](int i) { return std::to_integer<int>(packed[i]); };
  if (j < 4) return {static_cast<float>(at(j) & 63), static_cast<float>(at(j + 4) & 63)};
  return {static_cast<float>((at(j + 4) & 15) | (at(j - 4) >> 6 << 4)), static_cast<float>((at(j + 4) >> 4) | (at(j) >> 6 << 4))};
}

// All values of one block, written from the format's definition.
std::vector<float> block_values(dtype type, const std::byte* b) {
  const auto u8 = [&](int i) { return std::to_integer<int>(b[i]); };
  std::vector<float> out;
  for (int i = 0; i < 32 && traits(type).block_elems == 32; ++i) {
    const auto nibble = [&](int base) { return i < 16 ? u8(base + i) & 15 : u8(base + i - 16) >> 4; };
    const auto high = [&](int base) { return (u8(base + i / 8) >> (i % 8) & 1) << 4; };
    switch (type) {
      case dtype::q4_0:
        out.push_back(f16_at(b) * static_cast<float>(nibble(2) - 8));
        break;
      case dtype::q4_1:
        out.push_back(f16_at(b) * static_cast<float>(nibble(4)) + f16_at(b + 2));
        break;
      case dtype::q5_0:
        out.push_back(f16_at(b) * static_cast<float>((nibble(6) | high(2)) - 16));
        break;
      case dtype::q5_1:
        out.push_back(f16_at(b) * static_cast<float>(nibble(8) | high(4)) + f16_at(b + 2));
        break;
      default:
        out.push_back(f16_at(b) * static_cast<float>(static_cast<std::int8_t>(u8(2 + i))));
        break;
    }
  }
  for (int i = 0; i < 256 && traits(type).block_elems == 256; ++i) {
    if (type == dtype::q6_k) {
      const int half = i / 128, r = i % 128, quarter = r / 32, l = r % 32;
      const int low = u8(64 * half + l + (quarter % 2) * 32) >> (quarter / 2 * 4) & 15;
      const int top = u8(128 + 32 * half + l) >> (2 * quarter) & 3;
      const auto scale = static_cast<std::int8_t>(u8(192 + i / 16));
      out.push_back(f16_at(b + 208) * static_cast<float>(scale) * static_cast<float>((low | top << 4) - 32));
      continue;
    }
    const auto [scale, minimum] = k_scale(b + 4, i / 32);
    const int quants = type == dtype::q4_k ? 16 : 48;
    int q = u8(quants + i / 64 * 32 + i % 32) >> (i / 32 % 2 * 4) & 15;
    if (type == dtype::q5_k) q |= (u8(16 + i % 32) >> (i / 32) & 1) << 4;
    out.push_back(f16_at(b) * scale * static_cast<float>(q) - f16_at(b + 2) * minimum);
  }
  return out;
}

std::vector<float> values_of(const weight_view& view) {
  std::vector<float> out;
  const std::size_t unit = traits(view.type).block_bytes;
  for (std::size_t at = 0; at < bytes_of(view); at += unit) {
    const std::byte* b = view.data + at;
    std::uint16_t half = 0;
    float number = 0;
    std::memcpy(&half, b, 2);
    if (view.type == dtype::f32) std::memcpy(&number, b, 4);
    if (view.type == dtype::f16) number = f16_at(b);
    if (view.type == dtype::bf16) number = std::bit_cast<float>(std::uint32_t{half} << 16);
    if (is_quantised(view.type)) {
      for (float v : block_values(view.type, b)) out.push_back(v);
    } else {
      out.push_back(number);
    }
  }
  return out;
}

TEST(dummy_weights, every_type_has_finite_centred_values_of_the_asked_spread) {
  for (dtype type : {dtype::f32, dtype::f16, dtype::bf16, dtype::q4_0, dtype::q4_1, dtype::q5_0, dtype::q5_1, dtype::q8_0, dtype::q4_k,
                     dtype::q5_k, dtype::q6_k}) {
    const model_weights weights = make_dummy_weights(small_config(), type, 7);
    for (const weight_view& view : {weights.embedding, weights.layers[1].down}) {
      const std::vector<float> values = values_of(view);
      ASSERT_EQ(values.size(), static_cast<std::size_t>(view.rows * view.columns));
      double sum = 0;
      double squares = 0;
      for (float v : values) {
        ASSERT_TRUE(std::isfinite(v)) << traits(type).name;
        sum += v;
        squares += double{v} * v;
      }
      const auto n = static_cast<double>(values.size());
      const double spread = 1.0 / std::sqrt(static_cast<double>(view.columns));
      EXPECT_NEAR(std::sqrt(squares / n), spread, 0.05 * spread) << traits(type).name;
      EXPECT_NEAR(sum / n, 0.0, 0.05 * spread) << traits(type).name;
    }
  }
}

TEST(dummy_weights, the_seed_alone_decides) {
  const model_weights a = make_dummy_weights(small_config(), dtype::bf16, 1);
  const model_weights b = make_dummy_weights(small_config(), dtype::bf16, 1);
  const model_weights c = make_dummy_weights(small_config(), dtype::bf16, 2);
  EXPECT_TRUE(same(a.layers[1].gate, b.layers[1].gate));
  EXPECT_EQ(a.layers[1].attention_norm, b.layers[1].attention_norm);
  EXPECT_FALSE(same(a.layers[1].gate, c.layers[1].gate));
  EXPECT_FALSE(same(a.layers[1].gate, a.layers[1].up));
  EXPECT_FALSE(same(a.layers[0].gate, a.layers[1].gate));
}

TEST(dummy_weights, have_every_parameter_the_config_asks_for) {
  model_config config = small_config("qwen3");
  config.query_key_norm = config.query_key_value_bias = config.output_bias = true;
  const model_weights untied = make_dummy_weights(config, dtype::f16, 3);
  EXPECT_EQ(untied.layers[0].query_norm.size(), 64U);
  EXPECT_EQ(untied.layers[0].key_bias.size(), 128U);
  EXPECT_EQ(untied.layers[0].output_bias.size(), 256U);
  EXPECT_NE(untied.head.data, untied.embedding.data);
  config.tied_head = true;
  const model_weights tied = make_dummy_weights(config, dtype::f16, 3);
  EXPECT_EQ(tied.head.data, tied.embedding.data);
  EXPECT_EQ(untied.total_bytes - tied.total_bytes, 1000U * 256U * 2U);
}

TEST(dummy_weights, rows_longer_than_the_random_pool_and_chunks_do_not_leave_gaps) {
  model_config config = small_config();
  config.vocab_size = 20'000; // 20 MB: several chunks, several rounds of the pool
  const model_weights weights = make_dummy_weights(config, dtype::f32, 5);
  const std::vector<float> values = values_of(weights.embedding);
  std::size_t zeros = 0;
  for (float v : values) zeros += v == 0.0F ? 1 : 0;
  EXPECT_LT(zeros, 10U);
  // The same column of successive rows differs: the pool's period is prime.
  EXPECT_NE(values[0], values[256]);
  EXPECT_NE(values[0], values[std::size_t{256} * 4096]);
}

TEST(dummy_weights, impossible_requests_are_refused) {
  EXPECT_THAT(load_failure([] { make_dummy_weights(small_config(), dtype::i32, 1); }), HasSubstr("I32"));
  model_config config = small_config();
  config.hidden_size = 240; // no multiple of 256
  EXPECT_THAT(load_failure([&] { make_dummy_weights(config, dtype::q4_k, 1); }), HasSubstr("whole number of Q4_K blocks"));
  config.hidden_size = 0;
  EXPECT_THAT(load_failure([&] { make_dummy_weights(config, dtype::f32, 1); }), HasSubstr("hidden size"));
}

} // namespace
} // namespace troupe
