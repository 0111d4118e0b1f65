// binary16 and bfloat16 as their bits, one at a time. Rounding is to nearest, ties to even.
#pragma once

#include <bit>
#include <cstdint>

namespace troupe {

constexpr float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000U) << 16;
  const std::uint32_t special = (half & 0x7c00U) == 0x7c00U ? 0x7f800000U : 0U;
  const float finite = std::bit_cast<float>((half & 0x7fffU) << 13) * 0x1p112F; // the exponent bias differs by 112
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(finite) | special | sign);
}

// Beyond 65504 (after rounding) gives an infinity; NaN stays NaN.
constexpr std::uint16_t float_to_half(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16 & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  std::uint32_t half = 0;
  if (magnitude > 0x7f800000U) {
    half = 0x7e00U;
  } else if (magnitude >= 0x47800000U) { // 2^16 and infinity
    half = 0x7c00U;
  } else if (magnitude >= 0x38800000U) { // 2^-14: a normal binary16
    half = (magnitude - 0x38000000U + 0xfffU + (magnitude >> 13 & 1U)) >> 13;
  } else { // a multiple of 2^-24: adding 0.5 leaves exactly those mantissa bits, rounded by the hardware
    half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3f000000U;
  }
  return static_cast<std::uint16_t>(half | sign);
}

constexpr float bfloat16_to_float(std::uint16_t value) { return std::bit_cast<float>(std::uint32_t{value} << 16); }

constexpr std::uint16_t float_to_bfloat16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<std::uint16_t>(bits >> 16 | 0x40U); // stays a NaN
  return static_cast<std::uint16_t>((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16);
}

} // namespace troupe
