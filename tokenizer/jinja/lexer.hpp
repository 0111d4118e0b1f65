// Template source -> tokens, with Jinja2's rules for white space (trim_blocks and lstrip_blocks on, keep_trailing_newline off).
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::jinja {

enum class token_kind : std::uint8_t {
  data,
  variable_begin,
  variable_end,
  block_begin,
  block_end,
  name,
  string,
  integer,
  floating,
  symbol, // symbol: an operator or a bracket, in `text`
  end,
};

struct token {
  token_kind kind = token_kind::end;
  std::uint32_t line = 0;
  std::string text; // data and strings: unescaped; names and symbols: as written
  std::int64_t integer = 0;
  double floating = 0;
};

// What is wrong with a template's source, and in which line.
class syntax_error : public std::runtime_error {
 public:
  syntax_error(std::uint32_t line, const std::string& reason) : std::runtime_error(reason), line_(line) {}
  std::uint32_t line() const { return line_; }

 private:
  std::uint32_t line_;
};

// The whole source, which must be UTF-8; the last token is `end`. Throws syntax_error.
std::vector<token> tokenize(std::string_view source);

} // namespace troupe::jinja
