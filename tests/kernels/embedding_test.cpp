#include "kernels/embedding.hpp"

#include "core/half.hpp"
#include "tests/kernels/op_testing.hpp"

namespace troupe {
namespace {

class embedding_test : public test::op_test {};

TEST_F(embedding_test, looks_up_rows_of_every_plain_type_in_any_order) {
  cpu::thread_pool pool(2);
  const std::int64_t vocab = 300, hidden = 45, count = 500, stride = hidden + 2;
  const std::vector<float> table = normal(static_cast<std::size_t>(vocab * hidden));
  std::vector<std::uint16_t> half, brain;
  for (const float v : table) {
    half.push_back(float_to_half(v));
    brain.push_back(float_to_bfloat16(v));
  }
  std::vector<token_id> tokens;
  for (std::int64_t i = 0; i < count; ++i) tokens.push_back(static_cast<token_id>(between(0, vocab - 1)));
  tokens[0] = static_cast<token_id>(vocab - 1);
  const void* stored[] = {table.data(), half.data(), brain.data()};
  const dtype types[] = {dtype::f32, dtype::f16, dtype::bf16};
  for (int kind = 0; kind < 3; ++kind) {
    std::vector<float> y = test::poisoned(static_cast<std::size_t>(count * stride));
    cpu::embedding(pool,
                   {{types[kind], vocab, hidden, static_cast<const std::byte*>(stored[kind])}, tokens.data(), count, y.data(), stride});
    for (std::int64_t i = 0; i < count; ++i) {
      for (std::int64_t k = 0; k < hidden; ++k) {
        const std::size_t from = static_cast<std::size_t>(tokens[static_cast<std::size_t>(i)] * hidden + k);
        const float right = kind == 0 ? table[from] : kind == 1 ? half_to_float(half[from]) : bfloat16_to_float(brain[from]);
        ASSERT_EQ(y[static_cast<std::size_t>(i * stride + k)], right) << traits(types[kind]).name;
      }
      ASSERT_TRUE(std::isnan(y[static_cast<std::size_t>(i * stride + hidden)])) << "wrote behind row " << i;
    }
  }
}

} // namespace
} // namespace troupe
