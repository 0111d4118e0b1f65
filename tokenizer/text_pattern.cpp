#include "tokenizer/text_pattern.hpp"

#include "tokenizer/json_fields.hpp"

namespace troupe {

text_pattern read_pattern(const value& item, const std::string& where) {
  json_fields fields(item, where);
  const auto literal = fields.maybe_text("String");
  const auto expression = fields.maybe_text("Regex");
  fields.done();
  if (literal.has_value() == expression.has_value()) fields.fail("a pattern is either a String or a Regex");
  return literal ? text_pattern(*literal) : text_pattern(regex(*expression, where));
}

} // namespace troupe
