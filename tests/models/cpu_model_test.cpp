#include "models/cpu_model.hpp"

#include <numeric>

#include "tests/models/executor_testing.hpp"

namespace troupe {
namespace {

class cpu_model_test : public ::testing::TestWithParam<const char*> {
 protected:
  static constexpr std::int32_t block_size = 8;

  cpu_model make(dtype kv = dtype::f32) { return {test::tiny_weights(GetParam()), {2, 128, 32, block_size, 200, kv}}; }

  // Blocks `sequence * 16 ..`, in falling order.
  static std::vector<block_id> blocks_of(int sequence) {
    std::vector<block_id> blocks;
    for (int i = 15; i >= 0; --i) blocks.push_back(sequence * 16 + i);
    return blocks;
  }

  struct part {
    const std::vector<token_id>* tokens;
    int sequence;
    std::int32_t begin, end;
  };

  // One forward over the parts; logits of every row, part after part.
  static std::vector<float> run(cpu_model& model, const std::vector<part>& parts) {
    std::vector<token_id> tokens;
    std::vector<std::int32_t> positions;
    std::vector<attention_span> spans;
    std::vector<std::vector<block_id>> tables;
    for (const part& p : parts) tables.push_back(blocks_of(p.sequence));
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const part& p = parts[i];
      spans.push_back({static_cast<std::int32_t>(tokens.size()), p.end - p.begin, p.begin, tables[i].data()});
      for (std::int32_t at = p.begin; at < p.end; ++at) {
        tokens.push_back((*p.tokens)[static_cast<std::size_t>(at)]);
        positions.push_back(at);
      }
    }
    model.forward({tokens, positions, spans});
    std::vector<float> logits;
    std::vector<std::int32_t> rows(tokens.size());
    std::iota(rows.begin(), rows.end(), 0);
    for (std::size_t done = 0; done < rows.size(); done += 32) {
      const std::size_t count = std::min<std::size_t>(32, rows.size() - done);
      const float* chunk = model.logits({rows.data() + done, count});
      logits.insert(logits.end(), chunk, chunk + count * static_cast<std::size_t>(model.config().vocab_size));
    }
    return logits;
  }
};

TEST_P(cpu_model_test, logits_equal_transformers_within_f32_rounding) {
  cpu_model model = make();
  for (const test::expected_prompt& prompt : test::expected_prompts(GetParam())) {
    model.kv().fill(0xff);
    const std::vector<float> logits = run(model, {{&prompt.tokens, 0, 0, static_cast<std::int32_t>(prompt.tokens.size())}});
    ASSERT_EQ(logits.size(), prompt.logits.size());
    float scale = 0;
    for (const float v : prompt.logits) scale = std::max(scale, std::abs(v));
    for (std::size_t i = 0; i < logits.size(); ++i) {
      ASSERT_NEAR(logits[i], prompt.logits[i], 2e-4F * scale) << "row " << i / static_cast<std::size_t>(model.config().vocab_size);
    }
  }
}

TEST_P(cpu_model_test, a_narrow_kv_cache_stays_near_the_f32_one) {
  for (const auto& [type, tolerance] : {std::pair{dtype::f16, 1e-2F}, {dtype::bf16, 5e-2F}}) {
    cpu_model model = make(type);
    model.kv().fill(0xff);
    const test::expected_prompt prompt = test::expected_prompts(GetParam())[3];
    const std::vector<float> logits = run(model, {{&prompt.tokens, 0, 0, static_cast<std::int32_t>(prompt.tokens.size())}});
    float scale = 0, error = 0;
    for (const float v : prompt.logits) scale = std::max(scale, std::abs(v));
    for (std::size_t i = 0; i < logits.size(); ++i) error = std::max(error, std::abs(logits[i] - prompt.logits[i]));
    EXPECT_LT(error, tolerance * scale) << traits(type).name;
    EXPECT_GT(error, 0.0F) << traits(type).name;
  }
}

TEST_P(cpu_model_test, whole_chunked_single_and_batched_rows_are_bit_equal) {
  cpu_model model = make(dtype::f16);
  const std::vector<test::expected_prompt> prompts = test::expected_prompts(GetParam());
  const std::vector<token_id>& tokens = prompts[3].tokens;
  const std::int32_t length = static_cast<std::int32_t>(tokens.size());
  model.kv().fill(0xff);
  const std::vector<float> whole = run(model, {{&tokens, 0, 0, length}});

  model.kv().fill(0xff);
  std::vector<float> single;
  for (std::int32_t at = 0; at < length; ++at) {
    const std::vector<float> row = run(model, {{&tokens, 1, at, at + 1}});
    single.insert(single.end(), row.begin(), row.end());
  }
  EXPECT_EQ(whole, single);

  std::mt19937 random(std::random_device{}());
  for (int round = 0; round < 4; ++round) {
    model.kv().fill(0xff);
    std::vector<float> chunked;
    std::int32_t others = 0;
    for (std::int32_t at = 0; at < length;) {
      const std::int32_t next = std::min(length, at + std::uniform_int_distribution<std::int32_t>(1, 40)(random));
      std::vector<part> parts;
      const std::int32_t before = round % 2 == 0 ? 0 : 3; // sequences ahead of ours in the batch
      for (int other = 1; other <= 7 && round > 0; ++other) {
        if (other == before) parts.push_back({&tokens, 0, at, next});
        parts.push_back({&prompts[2].tokens, other, others, others + 1});
      }
      if (before == 0 || round == 0) parts.push_back({&tokens, 0, at, next});
      if (++others == 33) break;
      const std::vector<float> logits = run(model, parts);
      std::size_t first = 0;
      for (const part& p : parts) {
        if (p.sequence == 0) break;
        ++first;
      }
      const auto row = static_cast<std::ptrdiff_t>(model.config().vocab_size);
      const auto from = logits.begin() + static_cast<std::ptrdiff_t>(first) * row;
      chunked.insert(chunked.end(), from, from + (next - at) * row);
      at = next;
    }
    EXPECT_EQ(whole, chunked) << "round " << round;
  }
}

INSTANTIATE_TEST_SUITE_P(families, cpu_model_test, ::testing::ValuesIn(test::tiny_models), [](const auto& tested) {
  std::string name = tested.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

} // namespace
} // namespace troupe
