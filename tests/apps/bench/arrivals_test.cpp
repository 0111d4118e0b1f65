#include "apps/bench/arrivals.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace troupe::bench {
namespace {

struct gaps {
  double mean = 0, variation = 0; // standard deviation over mean
};

gaps measure(const std::vector<double>& times) {
  const double n = static_cast<double>(times.size() - 1);
  double sum = 0, squares = 0;
  for (std::size_t i = 1; i < times.size(); ++i) {
    const double gap = times[i] - times[i - 1];
    sum += gap;
    squares += gap * gap;
  }
  const double mean = sum / n;
  return {mean, std::sqrt(squares / n - mean * mean) / mean};
}

TEST(Arrivals, HaveTheAskedRateAndTheSpreadOfTheirShape) {
  for (const double burstiness : {0.25, 1.0, 4.0}) {
    const auto found = measure(arrival_times(40'000, 20, burstiness, 7));
    EXPECT_NEAR(found.mean, 0.05, 0.05 * 0.05) << burstiness;
    EXPECT_NEAR(found.variation, 1 / std::sqrt(burstiness), 0.05 / std::sqrt(burstiness)) << burstiness; // gamma: 1 / sqrt(shape)
  }
}

TEST(Arrivals, AscendFromZero) {
  const auto times = arrival_times(1'000, 3, 0.5, 1);
  EXPECT_EQ(times.front(), 0);
  EXPECT_TRUE(std::is_sorted(times.begin(), times.end()));
}

TEST(Arrivals, DependOnTheSeedAlone) {
  EXPECT_EQ(arrival_times(100, 5, 1, 11), arrival_times(100, 5, 1, 11));
  EXPECT_NE(arrival_times(100, 5, 1, 11), arrival_times(100, 5, 1, 12));
}

TEST(Arrivals, AnInfiniteRateSendsAllAtOnce) {
  EXPECT_EQ(arrival_times(3, std::numeric_limits<double>::infinity(), 1, 0), std::vector<double>(3, 0.0));
  EXPECT_TRUE(arrival_times(0, 1, 1, 0).empty());
}

} // namespace
} // namespace troupe::bench
