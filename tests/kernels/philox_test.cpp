#include "kernels/philox.hpp"

#include <gtest/gtest.h>

namespace troupe {
namespace {

// Known answers of the generator's authors (Random123, kat_vectors, "philox4x32 10").
TEST(philox, known_answers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (philox_counter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (philox_counter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (philox_counter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(philox, uniform_numbers_fill_the_unit_interval_evenly) {
  constexpr int bins = 16, draws = 160000;
  int by_position[bins] = {}, by_seed[bins] = {};
  for (std::uint64_t i = 0; i < draws; ++i) {
    const double a = uniform_at(42, i), b = uniform_at(i, 7);
    ASSERT_TRUE(a >= 0 && a < 1 && b >= 0 && b < 1);
    ++by_position[static_cast<int>(a * bins)];
    ++by_seed[static_cast<int>(b * bins)];
  }
  for (int i = 0; i < bins; ++i) { // five standard deviations of a binomial count
    EXPECT_NEAR(by_position[i], draws / bins, 490);
    EXPECT_NEAR(by_seed[i], draws / bins, 490);
  }
}

} // namespace
} // namespace troupe
