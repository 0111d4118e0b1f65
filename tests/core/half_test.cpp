#include "core/half.hpp"

#include <bit>

#include "tests/kernels/op_testing.hpp"

namespace troupe {
namespace {

class half_test : public test::op_test {};

TEST(half_bits, every_binary16_value_widens_to_its_formula_and_narrows_back) {
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const int exponent = static_cast<int>(bits >> 10 & 31U);
    const double mantissa = static_cast<double>(bits & 1023U);
    const double sign = (bits & 0x8000U) != 0 ? -1.0 : 1.0;
    const float wide = half_to_float(half);
    if (exponent == 31 && mantissa != 0) {
      EXPECT_TRUE(std::isnan(wide));
      EXPECT_TRUE(std::isnan(half_to_float(float_to_half(wide))));
      continue;
    }
    const double right = exponent == 31  ? std::numeric_limits<double>::infinity()
                         : exponent == 0 ? mantissa * 0x1p-24
                                         : (1.0 + mantissa / 1024.0) * std::exp2(exponent - 15);
    ASSERT_EQ(wide, static_cast<float>(sign * right)) << bits;
    ASSERT_EQ(float_to_half(wide), half) << bits;
  }
}

TEST_F(half_test, narrowing_takes_the_nearest_value_and_ties_to_even) {
  for (int i = 0; i < 200000; ++i) {
    const auto low = static_cast<std::uint16_t>(between(0, 0x7bfe)); // finite, and so is its neighbour
    const double a = half_to_float(low), b = half_to_float(static_cast<std::uint16_t>(low + 1));
    const float x = static_cast<float>(a + (b - a) * std::uniform_real_distribution<double>(0, 1)(random_));
    const double to_a = static_cast<double>(x) - a, to_b = b - static_cast<double>(x);
    if (to_a != to_b) {
      ASSERT_EQ(float_to_half(x), to_a < to_b ? low : low + 1) << x;
    }
    const float middle = static_cast<float>((a + b) / 2);
    ASSERT_EQ(float_to_half(middle), (low & 1) == 0 ? low : low + 1) << middle;
    ASSERT_EQ(float_to_half(-middle), 0x8000 | ((low & 1) == 0 ? low : low + 1));
  }
}

TEST(half_bits, too_large_becomes_infinite_and_bfloat16_rounds_to_even) {
  EXPECT_EQ(float_to_half(65504.0F), 0x7bff);
  EXPECT_EQ(float_to_half(65519.9F), 0x7bff);
  EXPECT_EQ(float_to_half(65520.0F), 0x7c00);
  EXPECT_EQ(float_to_half(-1e30F), 0xfc00);
  EXPECT_EQ(float_to_bfloat16(1.0F), 0x3f80);
  EXPECT_EQ(float_to_bfloat16(1.0F + 0x1p-8F), 0x3f80);     // a tie, down to even
  EXPECT_EQ(float_to_bfloat16(1.0F + 3 * 0x1p-8F), 0x3f82); // a tie, up to even
  EXPECT_EQ(float_to_bfloat16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_TRUE(std::isnan(bfloat16_to_float(float_to_bfloat16(std::bit_cast<float>(0x7f800001U)))));
}

} // namespace
} // namespace troupe
