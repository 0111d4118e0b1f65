#include "kernels/rope.hpp"

#include "tests/kernels/op_testing.hpp"

namespace troupe {
namespace {

class rope_test : public test::op_test {};

TEST_F(rope_test, turns_pairs_by_position_times_frequency_and_leaves_the_rest) {
  cpu::thread_pool pool(2);
  struct shape {
    std::int64_t rows, heads, head_dim, pairs;
  };
  for (const shape s : {shape{1, 1, 2, 1}, {5, 3, 10, 3}, {300, 9, 64, 32}, {3, 2, 128, 64}}) {
    for (const rope_pairing pairing : {rope_pairing::halves, rope_pairing::interleaved}) {
      std::vector<double> frequencies;
      for (std::int64_t i = 0; i < s.pairs; ++i)
        frequencies.push_back(std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(s.pairs)));
      rope_table table(frequencies, 1.25);
      std::vector<std::int32_t> positions;
      for (std::int64_t row = 0; row < s.rows; ++row) positions.push_back(static_cast<std::int32_t>(between(0, 2999)));
      table.reserve(10);
      table.reserve(3000);
      const std::int64_t stride = s.heads * s.head_dim + 2;
      const std::vector<float> before = normal(static_cast<std::size_t>(s.rows * stride));
      std::vector<float> after = before;
      cpu::rope(pool, {after.data(), stride, s.rows, s.heads, s.head_dim, positions.data(), table.view(), pairing});
      for (std::int64_t row = 0; row < s.rows; ++row) {
        std::vector<double> right(before.begin() + row * stride, before.begin() + (row + 1) * stride);
        for (std::int64_t head = 0; head < s.heads; ++head) {
          for (std::int64_t i = 0; i < s.pairs; ++i) {
            const double angle = positions[static_cast<std::size_t>(row)] * frequencies[static_cast<std::size_t>(i)];
            const std::int64_t a = head * s.head_dim + (pairing == rope_pairing::halves ? i : 2 * i);
            const std::int64_t b = pairing == rope_pairing::halves ? a + s.pairs : a + 1;
            const double x = before[static_cast<std::size_t>(row * stride + a)], y = before[static_cast<std::size_t>(row * stride + b)];
            right[static_cast<std::size_t>(a)] = 1.25 * (x * std::cos(angle) - y * std::sin(angle));
            right[static_cast<std::size_t>(b)] = 1.25 * (y * std::cos(angle) + x * std::sin(angle));
          }
        }
        for (std::int64_t i = 0; i < stride; ++i) {
          ASSERT_NEAR(after[static_cast<std::size_t>(row * stride + i)], right[static_cast<std::size_t>(i)], 1e-6)
              << "row " << row << ", element " << i;
        }
      }
    }
  }
}

TEST(rope_table, growing_does_not_change_what_was_there) {
  rope_table grown({1.0, 0.37}, 1.0), whole({1.0, 0.37}, 1.0);
  whole.reserve(500);
  for (const std::int64_t size : {1, 7, 3, 500}) grown.reserve(size);
  ASSERT_EQ(grown.size(), 500);
  for (std::int64_t i = 0; i < 1000; ++i) {
    ASSERT_EQ(grown.view().cos[i], whole.view().cos[i]);
    ASSERT_EQ(grown.view().sin[i], whole.view().sin[i]);
  }
}

} // namespace
} // namespace troupe
