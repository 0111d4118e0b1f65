// Division by a number that is known before a kernel starts: where a loaded index leads to the next load, dividing takes as long as
// loading.
#pragma once

#include <bit>
#include <cstdint>

namespace troupe::gpu {

// Granlund and Montgomery, "Division by Invariant Integers using Multiplication" (PLDI 1994), section 4: with 2^shift >= divisor,
// n / divisor = (n + floor(n * factor / 2^32)) / 2^shift for factor = floor(2^32 (2^shift - divisor) / divisor) + 1.
class divider {
 public:
  constexpr explicit divider(std::int32_t positive)
      : divisor_(positive),
        shift_(static_cast<int>(std::bit_width(static_cast<std::uint32_t>(positive) - 1))),
        factor_(static_cast<std::uint32_t>((((std::uint64_t{1} << shift_) - static_cast<std::uint32_t>(positive)) << 32) /
                                           static_cast<std::uint32_t>(positive)) +
                1) {}

  // Of n >= 0.
  constexpr std::int32_t quotient(std::int32_t n) const {
    const auto value = static_cast<std::uint32_t>(n);
    return static_cast<std::int32_t>((value + static_cast<std::uint32_t>(std::uint64_t{value} * factor_ >> 32)) >> shift_);
  }
  constexpr std::int32_t remainder(std::int32_t n) const { return n - quotient(n) * divisor_; }

 private:
  std::int32_t divisor_;
  int shift_;
  std::uint32_t factor_;
};

} // namespace troupe::gpu
