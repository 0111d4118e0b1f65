#include "kernels/widen.hpp"

#include <bit>

#include "core/half.hpp"
#include "tests/kernels/op_testing.hpp"

namespace troupe {
namespace {

class widen_test : public test::op_test {};

TEST_F(widen_test, every_bit_pattern_and_odd_width_is_widened_exactly) {
  std::vector<std::uint16_t> patterns(0x10000);
  for (std::uint32_t i = 0; i < 0x10000U; ++i) patterns[i] = static_cast<std::uint16_t>(i);
  for (const dtype type : {dtype::f16, dtype::bf16}) {
    for (const std::int64_t columns : {1, 7, 16, 37, 256}) {
      const std::int64_t rows = 0x10000 / 256, stride = columns + 3;
      std::vector<float> wide = test::poisoned(static_cast<std::size_t>(rows * stride));
      cpu::widen_rows_for(type)(patterns.data(), 256, rows, columns, wide.data(), stride);
      for (std::int64_t row = 0; row < rows; ++row) {
        for (std::int64_t i = 0; i < stride; ++i) {
          const float got = wide[static_cast<std::size_t>(row * stride + i)];
          if (i >= columns) {
            ASSERT_TRUE(std::isnan(got)) << "wrote behind row " << row;
            continue;
          }
          const std::uint16_t bits = patterns[static_cast<std::size_t>(row * 256 + i)];
          const float right = type == dtype::f16 ? half_to_float(bits) : bfloat16_to_float(bits);
          if (std::isnan(right)) {
            ASSERT_TRUE(std::isnan(got)) << bits;
          } else {
            ASSERT_EQ(std::bit_cast<std::uint32_t>(got), std::bit_cast<std::uint32_t>(right)) << bits;
          }
        }
      }
    }
  }
}

} // namespace
} // namespace troupe
