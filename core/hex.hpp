// Bytes as hexadecimal text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string>

namespace troupe {

// Two lower-case digits a byte.
inline std::string hex_of(std::span<const std::uint8_t> bytes) {
  std::string text;
  for (const std::uint8_t byte : bytes) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

// So many random bytes: a proof of who somebody is, or a name that nobody else has.
inline std::string random_hex(std::size_t bytes) {
  std::random_device source;
  std::string text;
  for (std::size_t i = 0; i < bytes; ++i) {
    const auto byte = static_cast<std::uint8_t>(source());
    text += hex_of({&byte, 1});
  }
  return text;
}

} // namespace troupe
