// Philox 4x32-10, a counter-based random generator (Salmon, Moraes, Dror, Shaw: Parallel random numbers, as easy as 1, 2, 3; SC 2011).
// Stateless: the numbers are a function of counter and key, so a draw can be repeated anywhere.
#pragma once

#include <array>
#include <cstdint>

namespace troupe {

using philox_counter = std::array<std::uint32_t, 4>;
using philox_key = std::array<std::uint32_t, 2>;

constexpr philox_counter philox(philox_counter counter, philox_key key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53U} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57U} * counter[2];
    counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key[0] += 0x9E3779B9U;
    key[1] += 0xBB67AE85U;
  }
  return counter;
}

// The number in [0, 1) that draws the token at `position` of a sequence with `seed`; a multiple of 2^-53.
constexpr double uniform_at(std::uint64_t seed, std::uint64_t position) {
  const philox_counter bits = philox({static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(position >> 32), 0, 0},
                                     {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  const std::uint64_t word = std::uint64_t{bits[1]} << 32 | bits[0];
  return static_cast<double>(word >> 11) * 0x1p-53;
}

} // namespace troupe
