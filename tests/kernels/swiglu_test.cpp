#include "kernels/swiglu.hpp"

#include "tests/kernels/op_testing.hpp"

namespace troupe {
namespace {

class swiglu_test : public test::op_test {};

TEST_F(swiglu_test, equals_the_formula_for_odd_widths) {
  cpu::thread_pool pool(2);
  for (const std::int64_t columns : {1, 15, 16, 17, 100, 1536}) {
    const std::int64_t rows = between(1, 40), stride = 2 * columns + 5;
    const std::vector<float> x = normal(static_cast<std::size_t>(rows * stride), 4.0F);
    std::vector<float> y = test::poisoned(static_cast<std::size_t>(rows * columns));
    cpu::swiglu(pool, {x.data(), stride, y.data(), columns, rows, columns});
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t i = 0; i < columns; ++i) {
        const double gate = x[static_cast<std::size_t>(row * stride + i)], up = x[static_cast<std::size_t>(row * stride + columns + i)];
        const double right = gate / (1.0 + std::exp(-gate)) * up;
        ASSERT_NEAR(y[static_cast<std::size_t>(row * columns + i)], right, 1e-6 * std::abs(right) + 1e-12);
      }
    }
  }
}

TEST_F(swiglu_test, extreme_gates_neither_overflow_nor_hide_a_nan) {
  cpu::thread_pool pool(1);
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> x = {-1e30F, -200.0F, -88.5F, 0.0F, 88.5F, 1e30F, nan, 1.0F, 1, 1, 1, 1, 1, 1, 1, nan};
  std::vector<float> y = test::poisoned(8);
  cpu::swiglu(pool, {x.data(), 16, y.data(), 8, 1, 8});
  EXPECT_NEAR(y[0], 0.0, 1e-7);
  EXPECT_NEAR(y[1], 0.0, 1e-30);
  EXPECT_NEAR(y[2], 0.0, 1e-30);
  EXPECT_EQ(y[3], 0.0F);
  EXPECT_EQ(y[4], 88.5F);
  EXPECT_EQ(y[5], 1e30F);
  EXPECT_TRUE(std::isnan(y[6]));
  EXPECT_TRUE(std::isnan(y[7]));
  EXPECT_NE(y[5], inf);
}

} // namespace
} // namespace troupe
