// Character properties behind Python's str methods. The tables are sorted by code point; make_unicode_tables.py writes them.
#pragma once

#include <cstdint>
#include <span>

namespace troupe::jinja::unicode {

struct range {
  char32_t first, last; // inclusive
};

// first, first + step, .. last each map to themselves + delta.
struct case_run {
  char32_t first, last;
  std::uint32_t step;
  std::int32_t delta;
};

// One character that maps to two or three (0: unused).
struct expansion {
  char32_t from;
  char32_t to[3];
};

extern const std::span<const range> unprintable, alphabetic, decimals, digits, numerics;
extern const std::span<const case_run> to_upper, to_lower, to_title;
extern const std::span<const expansion> to_upper_long, to_lower_long, to_title_long;

} // namespace troupe::jinja::unicode
