// Strict JSON text <-> value. The one place that parses JSON; RFC 8259, UTF-8 only.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "core/error.hpp"
#include "core/value.hpp"

namespace troupe::json {

struct limits {
  std::size_t max_depth = 64;
  std::size_t max_values = 10'000'000; // array items and object members in all; an array or object counts as eight, for its memory
};

// Whole text, one value. Refuses invalid UTF-8, lone surrogates, NaN and Infinity, trailing text, and what is over a
// limit. Integers outside int64 become doubles; numbers that overflow a double are refused. The error's message gives the byte offset and
// the reason, and no bytes of the input; `param` is empty.
result<value> parse(std::string_view text, const limits& bounds = {});

// Compact text. Bytes that are not UTF-8 come out as U+FFFD; non-finite numbers as null.
std::string dump(const value& item);

// `text` as a JSON string with its quotes; bytes that are not UTF-8 come out as U+FFFD.
std::string quote(std::string_view text);

} // namespace troupe::json
