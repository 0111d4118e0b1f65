// Histogram bounds; docs/metrics.md shows them and a test keeps the two equal.
#pragma once

#include <vector>

namespace troupe::telemetry {

// Seconds: 0.1 ms to 300 s, six a decade, so that a 2 ms token and a five-minute answer are both told apart from their neighbours.
inline std::vector<double> time_buckets() {
  return {1e-4, 1.5e-4, 2e-4, 3e-4, 5e-4, 7.5e-4, 1e-3, 1.5e-3, 2e-3, 3e-3, 5e-3, 7.5e-3, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15,
          0.2,  0.3,    0.5,  0.75, 1,    1.5,    2,    3,      5,    7.5,  10,   15,     20,   30,    50,   75,   100,  150,   200, 300};
}

// 1, 2, 4 .. 2^highest_power.
inline std::vector<double> powers_of_two(int highest_power) {
  std::vector<double> bounds;
  for (int power = 0; power <= highest_power; ++power) bounds.push_back(static_cast<double>(1L << power));
  return bounds;
}

inline std::vector<double> sequence_buckets() { return powers_of_two(10); } // to 1024
inline std::vector<double> token_buckets() { return powers_of_two(17); }    // to 131072

} // namespace troupe::telemetry
