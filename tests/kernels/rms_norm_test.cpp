#include "kernels/rms_norm.hpp"

#include "tests/kernels/op_testing.hpp"

namespace troupe {
namespace {

class rms_norm_test : public test::op_test {};

TEST_F(rms_norm_test, equals_the_formula_for_odd_shapes_strides_and_groups) {
  cpu::thread_pool pool(2);
  struct shape {
    std::int64_t rows, groups, columns;
  };
  for (const shape s : {shape{1, 1, 1}, {3, 1, 7}, {5, 3, 16}, {2, 4, 33}, {257, 1, 576}, {1, 1, 4097}}) {
    const std::int64_t x_stride = s.groups * s.columns + 3, y_stride = s.groups * s.columns + 1;
    const std::vector<float> x = normal(static_cast<std::size_t>(s.rows * x_stride), 3.0F);
    const std::vector<float> weight = normal(static_cast<std::size_t>(s.columns));
    std::vector<float> y = test::poisoned(static_cast<std::size_t>(s.rows * y_stride));
    cpu::rms_norm(pool, {x.data(), x_stride, y.data(), y_stride, s.rows, s.groups, s.columns, weight.data(), 1e-5F});
    for (std::int64_t row = 0; row < s.rows; ++row) {
      for (std::int64_t group = 0; group < s.groups; ++group) {
        const float* in = x.data() + row * x_stride + group * s.columns;
        const float* out = y.data() + row * y_stride + group * s.columns;
        double squares = 0;
        for (std::int64_t i = 0; i < s.columns; ++i) squares += static_cast<double>(in[i]) * static_cast<double>(in[i]);
        const double scale = 1.0 / std::sqrt(squares / static_cast<double>(s.columns) + 1e-5);
        for (std::int64_t i = 0; i < s.columns; ++i) {
          const double right = static_cast<double>(in[i]) * scale * static_cast<double>(weight[static_cast<std::size_t>(i)]);
          ASSERT_NEAR(out[i], right, 1e-6 * std::abs(right) + 1e-7) << s.columns << " columns, row " << row << ", element " << i;
        }
      }
      ASSERT_TRUE(std::isnan(y[static_cast<std::size_t>((row + 1) * y_stride - 1)])) << "wrote behind row " << row;
    }
  }
}

TEST_F(rms_norm_test, a_row_in_place_and_alone_equals_the_row_in_a_batch_bit_for_bit) {
  cpu::thread_pool pool(2);
  const std::int64_t rows = 64, columns = 600;
  const std::vector<float> x = normal(static_cast<std::size_t>(rows * columns));
  const std::vector<float> weight = normal(static_cast<std::size_t>(columns));
  std::vector<float> batch = test::poisoned(x.size());
  cpu::rms_norm(pool, {x.data(), columns, batch.data(), columns, rows, 1, columns, weight.data(), 1e-6F});
  std::vector<float> alone = x;
  for (std::int64_t row = 0; row < rows; ++row) {
    float* at = alone.data() + row * columns;
    cpu::rms_norm(pool, {at, columns, at, columns, 1, 1, columns, weight.data(), 1e-6F});
  }
  EXPECT_EQ(alone, batch);
}

TEST_F(rms_norm_test, a_nan_stays_in_its_row) {
  cpu::thread_pool pool(2);
  std::vector<float> x = normal(2 * 40);
  x[3] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> weight(40, 1.0F);
  cpu::rms_norm(pool, {x.data(), 40, x.data(), 40, 2, 1, 40, weight.data(), 1e-6F});
  for (std::size_t i = 0; i < 40; ++i) {
    EXPECT_TRUE(std::isnan(x[i]));
    EXPECT_FALSE(std::isnan(x[40 + i]));
  }
}

} // namespace
} // namespace troupe
