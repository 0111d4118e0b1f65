// Substring search in time linear in both lengths, paid for.
#pragma once

#include <string_view>

#include "tokenizer/jinja/machine.hpp"

namespace troupe::jinja {

// First place at or after `from`, or npos.
std::size_t find_text(machine& m, std::string_view text, std::string_view wanted, std::size_t from);
// Last place, or npos.
std::size_t find_last(machine& m, std::string_view text, std::string_view wanted);

} // namespace troupe::jinja
