// Fresh random inputs for op tests; the seed is printed with every failure.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace troupe::test {

class op_test : public ::testing::Test {
 protected:
  op_test() : seed_(std::random_device{}()), random_(seed_), trace_(__FILE__, __LINE__, "seed " + std::to_string(seed_)) {}

  std::vector<float> normal(std::size_t count, float deviation = 1.0F) {
    std::normal_distribution<float> distribution(0.0F, deviation);
    std::vector<float> values(count);
    for (float& v : values) v = distribution(random_);
    return values;
  }
  std::int64_t between(std::int64_t low, std::int64_t high) { return std::uniform_int_distribution<std::int64_t>(low, high)(random_); }

  std::uint32_t seed_;
  std::mt19937 random_;
  ::testing::ScopedTrace trace_;
};

// An output nobody wrote is seen: NaN equals nothing.
inline std::vector<float> poisoned(std::size_t count) { return std::vector<float>(count, std::numeric_limits<float>::quiet_NaN()); }

} // namespace troupe::test
