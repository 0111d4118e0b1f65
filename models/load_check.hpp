// Overflow-safe arithmetic on sizes that a file claims, and the one form of a load error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace troupe {

// none when the true result does not fit.
inline std::optional<std::size_t> checked_add(std::size_t a, std::size_t b) {
  std::size_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

inline std::optional<std::size_t> checked_multiply(std::size_t a, std::size_t b) {
  std::size_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

// Elements of a shape (1 for an empty one); none when a dimension is negative or the count does not fit.
std::optional<std::size_t> element_count(std::span<const std::int64_t> shape);

// "[2, 3]"
std::string shape_text(std::span<const std::int64_t> shape);

// Text from a file for an error line: printable ASCII only, other bytes as '?', cut at 96 characters.
std::string printable(std::string_view text);

// Throws load_error "FILE: ITEM: REASON", or "FILE: REASON" when `item` is empty.
[[noreturn]] void fail_load(std::string_view file, std::string_view item, std::string_view reason);

} // namespace troupe
