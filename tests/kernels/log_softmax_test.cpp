#include "kernels/log_softmax.hpp"

#include "tests/kernels/op_testing.hpp"

namespace troupe {
namespace {

class log_softmax_test : public test::op_test {};
constexpr float inf = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

TEST_F(log_softmax_test, equals_the_formula_for_odd_sizes) {
  for (const std::size_t count : {1, 2, 15, 16, 17, 1000, 1024, 1025, 49152, 151936}) {
    std::vector<float> x = normal(count, 5.0F);
    for (float& v : x) v += 300.0F; // far from 0: nothing may overflow
    if (count > 20) x[7] = -inf;    // a masked id
    double top = -1e300, sum = 0;
    for (const float v : x) top = std::max(top, static_cast<double>(v));
    for (const float v : x) sum += std::exp(static_cast<double>(v) - top);
    const softmax_scale scale = cpu::log_softmax(x.data(), static_cast<std::int64_t>(count));
    ASSERT_TRUE(scale.usable);
    for (std::size_t i = 0; i < count; i += 1 + count / 50) {
      const double right = static_cast<double>(x[i]) - top - std::log(sum);
      if (std::isfinite(x[i]))
        ASSERT_NEAR(scale.log_probability(x[i]), right, 2e-6 + 1e-7 * std::abs(right)) << count;
      else
        ASSERT_EQ(scale.log_probability(x[i]), -inf);
    }
  }
}

TEST_F(log_softmax_test, nan_infinity_and_nothing_finite_are_found_wherever_they_are) {
  for (const std::size_t count : {1, 16, 37}) {
    for (std::size_t at = 0; at < count; ++at) {
      std::vector<float> x = normal(count);
      x[at] = nan;
      EXPECT_FALSE(cpu::log_softmax(x.data(), static_cast<std::int64_t>(count)).usable) << at << " of " << count;
      x[at] = inf;
      EXPECT_FALSE(cpu::log_softmax(x.data(), static_cast<std::int64_t>(count)).usable) << at << " of " << count;
    }
    const std::vector<float> masked(count, -inf);
    EXPECT_FALSE(cpu::log_softmax(masked.data(), static_cast<std::int64_t>(count)).usable);
  }
}

} // namespace
} // namespace troupe
