#include "kernels/divider.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <random>

namespace troupe::gpu {
namespace {

TEST(divider, divides_as_the_processor_does) {
  constexpr std::int32_t most = std::numeric_limits<std::int32_t>::max();
  std::mt19937 random(7);
  std::uniform_int_distribution<std::int32_t> any(1, most);
  for (int i = 1; i < 3000; ++i) {
    const std::int32_t divisor = i < 1000 ? i : any(random);
    const divider by(divisor);
    for (const std::int32_t n :
         {0, 1, divisor - 1, divisor, divisor < most ? divisor + 1 : most, most - 1, most, any(random), any(random)}) {
      ASSERT_EQ(by.quotient(n), n / divisor) << n << " / " << divisor;
      ASSERT_EQ(by.remainder(n), n % divisor) << n << " % " << divisor;
    }
  }
}

} // namespace
} // namespace troupe::gpu
