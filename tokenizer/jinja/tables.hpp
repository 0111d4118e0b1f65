// The built-in filters, by file.
#pragma once

#include <span>

#include "tokenizer/jinja/cell.hpp"

namespace troupe::jinja {

std::span<const builtin> value_filters();    // of one value: text, numbers, JSON
std::span<const builtin> sequence_filters(); // of rows of values
std::span<const builtin> select_filters();   // that apply others to each item

} // namespace troupe::jinja
