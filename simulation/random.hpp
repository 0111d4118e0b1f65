// Random numbers that are the same with every compiler and library, unlike the distributions of <random>: a seed names one run for ever.
#pragma once

#include <cmath>
#include <cstdint>

namespace troupe::simulation {

class random_source {
 public:
  explicit random_source(std::uint64_t seed) : state_(seed) {}

  // SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15ULL);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }
  // 0 .. bound-1; bound > 0.
  std::uint64_t below(std::uint64_t bound) { return next() % bound; }
  std::int32_t between(std::int32_t low, std::int32_t high) { // both included
    return low + static_cast<std::int32_t>(below(static_cast<std::uint64_t>(high - low) + 1));
  }
  bool one_in(std::uint64_t count) { return below(count) == 0; }
  double unit() { return (static_cast<double>(next() >> 11) + 0.5) * 0x1.0p-53; }                     // within (0, 1)
  double normal() { return std::sqrt(-2 * std::log(unit())) * std::cos(6.283185307179586 * unit()); } // Box and Muller
  // Scale 1, so the mean is `shape`. Marsaglia and Tsang, A simple method for generating gamma variables, 2000; below shape 1 with their
  // boost.
  double gamma(double shape) {
    if (shape < 1) return gamma(shape + 1) * std::pow(unit(), 1 / shape);
    const double d = shape - 1.0 / 3;
    const double c = 1 / std::sqrt(9 * d);
    for (;;) {
      const double x = normal();
      const double v = std::pow(1 + c * x, 3);
      if (v > 0 && std::log(unit()) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v;
    }
  }

 private:
  std::uint64_t state_;
};

} // namespace troupe::simulation
