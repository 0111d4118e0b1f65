// Template source -> program.
#pragma once

#include <cstddef>
#include <string_view>

#include "tokenizer/jinja/ast.hpp"

namespace troupe::jinja {

// `source` is UTF-8; blocks, brackets and unary operators nest at most max_depth levels. Throws syntax_error (lexer.hpp).
program parse(std::string_view source, std::size_t max_depth);

} // namespace troupe::jinja
