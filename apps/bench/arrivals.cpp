#include "apps/bench/arrivals.hpp"

#include <cmath>
#include <random>

namespace troupe::bench {

std::vector<double> arrival_times(std::size_t count, double rate, double burstiness, std::uint64_t seed) {
  std::vector<double> times(count, 0.0);
  if (std::isinf(rate)) return times;
  std::mt19937_64 random(seed);
  std::gamma_distribution<double> gap(burstiness, 1.0 / (rate * burstiness)); // mean = shape * scale = 1 / rate
  for (std::size_t i = 1; i < count; ++i) times[i] = times[i - 1] + gap(random);
  return times;
}

} // namespace troupe::bench
