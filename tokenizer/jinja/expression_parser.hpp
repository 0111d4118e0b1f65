// Expressions, with Jinja2's grammar and precedence.
#pragma once

#include <string_view>
#include <vector>

#include "tokenizer/jinja/token_stream.hpp"

namespace troupe::jinja {

class expression_parser {
 public:
  explicit expression_parser(token_stream& in) : in_(in) {}

  expression_ptr parse();
  // One expression, or a tuple of several with commas between them. Without `conditional`, `if` ends it.
  expression_ptr parse_row(bool conditional = true);
  // Filters, each behind a '|'; with `bare_first`, the first stands without one.
  std::vector<chain_step> parse_filters(bool bare_first);

 private:
  expression_ptr parse_or();
  expression_ptr parse_and();
  expression_ptr parse_not();
  expression_ptr parse_compare();
  expression_ptr parse_sum();
  expression_ptr parse_concat();
  expression_ptr parse_product();
  expression_ptr parse_power();
  expression_ptr parse_unary(bool with_filters);
  expression_ptr parse_primary();
  expression_ptr parse_name();
  expression_ptr parse_parenthesis();
  expression_ptr parse_list();
  expression_ptr parse_dict();
  expression_ptr parse_row_in(bool conditional, bool parenthesis);

  bool parse_postfix(std::vector<chain_step>& steps);
  void parse_tail(std::vector<chain_step>& steps, bool with_filters);
  chain_step parse_subscript();
  chain_step parse_filter();
  chain_step parse_test();
  call_arguments parse_arguments();
  expression_ptr parse_argument_or_none(bool none);
  std::string parse_dotted(std::string_view what);
  bool at_row_end() const;

  token_stream& in_;
};

} // namespace troupe::jinja
