#include "tokenizer/jinja/expression_parser.hpp"

#include <algorithm>
#include <array>

namespace troupe::jinja {

namespace {

template <class Node>
expression_ptr make(std::uint32_t line, Node node) {
  return std::make_unique<expression>(expression{line, std::move(node)});
}

expression_ptr constant(std::uint32_t line, cell value) { return make(line, constant_node{std::move(value)}); }

// Operators of one precedence, from left to right: one flat node.
template <class Operand, std::size_t N>
expression_ptr parse_arithmetic(token_stream& in, const std::array<std::pair<std::string_view, arithmetic_op>, N>& operators,
                                Operand operand) {
  const std::uint32_t line = in.line();
  arithmetic_node node{operand(), {}};
  while (in.is(token_kind::symbol)) {
    auto it = std::find_if(operators.begin(), operators.end(), [&](const auto& o) { return o.first == in.current().text; });
    if (it == operators.end()) break;
    in.next();
    node.rest.emplace_back(it->second, operand());
  }
  return node.rest.empty() ? std::move(node.first) : make(line, std::move(node));
}

} // namespace

expression_ptr expression_parser::parse() {
  constexpr std::size_t most = 16; // conditions in a row; each adds a level to the tree
  const std::uint32_t line = in_.line();
  expression_ptr item = parse_or();
  for (std::size_t conditions = 0; in_.skip_name("if"); ++conditions) {
    if (conditions == most) in_.fail("too many conditions in one expression");
    const token_stream::level deeper(in_);
    expression_ptr test = parse_or();
    expression_ptr otherwise = in_.skip_name("else") ? parse() : nullptr;
    item = make(line, condition_node{std::move(item), std::move(test), std::move(otherwise)});
  }
  return item;
}

expression_ptr expression_parser::parse_row(bool conditional) { return parse_row_in(conditional, false); }

bool expression_parser::at_row_end() const {
  return in_.is(token_kind::variable_end) || in_.is(token_kind::block_end) || in_.is_symbol(")");
}

expression_ptr expression_parser::parse_row_in(bool conditional, bool parenthesis) {
  const std::uint32_t line = in_.line();
  std::vector<expression_ptr> items;
  bool row = false;
  while (!at_row_end()) {
    items.push_back(conditional ? parse() : parse_or());
    if (!in_.skip_symbol(",")) break;
    row = true;
  }
  if (!row && items.size() == 1) return std::move(items[0]);
  if (!row && !parenthesis) in_.fail("expected an expression" + in_.found());
  return make(line, sequence_node{sequence_kind::tuple, std::move(items)});
}

expression_ptr expression_parser::parse_or() {
  const std::uint32_t line = in_.line();
  logic_node node{true, {}};
  do node.operands.push_back(parse_and());
  while (in_.skip_name("or"));
  return node.operands.size() == 1 ? std::move(node.operands[0]) : make(line, std::move(node));
}

expression_ptr expression_parser::parse_and() {
  const std::uint32_t line = in_.line();
  logic_node node{false, {}};
  do node.operands.push_back(parse_not());
  while (in_.skip_name("and"));
  return node.operands.size() == 1 ? std::move(node.operands[0]) : make(line, std::move(node));
}

expression_ptr expression_parser::parse_not() {
  if (!in_.is_name("not")) return parse_compare();
  const token_stream::level deeper(in_);
  const std::uint32_t line = in_.next().line;
  return make(line, not_node{parse_not()});
}

expression_ptr expression_parser::parse_compare() {
  static constexpr std::array<std::pair<std::string_view, compare_op>, 6> operators = {{{"==", compare_op::equal},
                                                                                        {"!=", compare_op::not_equal},
                                                                                        {"<", compare_op::less},
                                                                                        {"<=", compare_op::less_equal},
                                                                                        {">", compare_op::greater},
                                                                                        {">=", compare_op::greater_equal}}};
  const std::uint32_t line = in_.line();
  compare_node node{parse_sum(), {}};
  while (true) {
    auto it = std::find_if(operators.begin(), operators.end(), [&](const auto& o) { return in_.is_symbol(o.first); });
    if (it != operators.end()) {
      in_.next();
      node.rest.emplace_back(it->second, parse_sum());
    } else if (in_.skip_name("in")) {
      node.rest.emplace_back(compare_op::in, parse_sum());
    } else if (in_.is_name("not") && in_.ahead().kind == token_kind::name && in_.ahead().text == "in") {
      in_.next();
      in_.next();
      node.rest.emplace_back(compare_op::not_in, parse_sum());
    } else {
      return node.rest.empty() ? std::move(node.first) : make(line, std::move(node));
    }
  }
}

expression_ptr expression_parser::parse_sum() {
  static constexpr std::array<std::pair<std::string_view, arithmetic_op>, 2> operators = {
      {{"+", arithmetic_op::add}, {"-", arithmetic_op::subtract}}};
  return parse_arithmetic(in_, operators, [this] { return parse_concat(); });
}

expression_ptr expression_parser::parse_concat() {
  const std::uint32_t line = in_.line();
  concat_node node;
  do node.items.push_back(parse_product());
  while (in_.skip_symbol("~"));
  return node.items.size() == 1 ? std::move(node.items[0]) : make(line, std::move(node));
}

expression_ptr expression_parser::parse_product() {
  static constexpr std::array<std::pair<std::string_view, arithmetic_op>, 4> operators = {
      {{"*", arithmetic_op::multiply}, {"/", arithmetic_op::divide}, {"//", arithmetic_op::floor_divide}, {"%", arithmetic_op::modulo}}};
  return parse_arithmetic(in_, operators, [this] { return parse_power(); });
}

expression_ptr expression_parser::parse_power() {
  static constexpr std::array<std::pair<std::string_view, arithmetic_op>, 1> operators = {{{"**", arithmetic_op::power}}};
  return parse_arithmetic(in_, operators, [this] { return parse_unary(true); });
}

// A signed operand takes its postfixes and filters after the sign: -1|abs is 1, as in Jinja2.
expression_ptr expression_parser::parse_unary(bool with_filters) {
  const std::uint32_t line = in_.line();
  expression_ptr operand;
  if (in_.is_symbol("-") || in_.is_symbol("+")) {
    const token_stream::level deeper(in_);
    const bool minus = in_.next().text == "-";
    operand = make(line, sign_node{minus, parse_unary(false)});
  } else {
    operand = parse_primary();
  }
  std::vector<chain_step> steps;
  parse_tail(steps, with_filters);
  return steps.empty() ? std::move(operand) : make(line, chain_node{std::move(operand), std::move(steps)});
}

void expression_parser::parse_tail(std::vector<chain_step>& steps, bool with_filters) {
  while (parse_postfix(steps)) {
  }
  while (with_filters) {
    const std::uint32_t line = in_.line();
    if (in_.skip_symbol("|")) {
      steps.push_back(parse_filter());
    } else if (in_.is_name("is")) {
      steps.push_back(parse_test());
    } else if (in_.is_symbol("(")) {
      steps.push_back({line, call_step{parse_arguments()}});
    } else {
      return;
    }
  }
}

bool expression_parser::parse_postfix(std::vector<chain_step>& steps) {
  const std::uint32_t line = in_.line();
  if (in_.is_symbol(".") || in_.is_symbol("[")) {
    steps.push_back(parse_subscript());
  } else if (in_.is_symbol("(")) {
    steps.push_back({line, call_step{parse_arguments()}});
  } else {
    return false;
  }
  return true;
}

expression_ptr expression_parser::parse_argument_or_none(bool none) { return none ? nullptr : parse(); }

chain_step expression_parser::parse_subscript() {
  const std::uint32_t line = in_.line();
  if (in_.skip_symbol(".")) {
    if (in_.is(token_kind::name)) return {line, attribute_step{in_.next().text}};
    if (in_.is(token_kind::integer)) return {line, item_step{constant(line, in_.next().integer)}};
    in_.fail("expected a name or a number behind '.'");
  }
  const token_stream::level deeper(in_);
  in_.expect_symbol("[");
  if (in_.is_symbol("]")) return in_.next(), chain_step{line, item_step{make(line, sequence_node{sequence_kind::tuple, {}})}};
  auto part_ends = [&] { return in_.is_symbol("]") || in_.is_symbol(":"); };
  expression_ptr first = parse_argument_or_none(in_.is_symbol(":"));
  if (in_.skip_symbol(":")) {
    slice_step slice{std::move(first), parse_argument_or_none(part_ends()), nullptr};
    if (in_.skip_symbol(":")) slice.step = parse_argument_or_none(part_ends());
    in_.expect_symbol("]");
    return {line, std::move(slice)};
  }
  if (in_.is_symbol(",")) {
    sequence_node row{sequence_kind::tuple, {}};
    row.items.push_back(std::move(first));
    while (in_.skip_symbol(",")) row.items.push_back(parse());
    first = make(line, std::move(row));
  }
  in_.expect_symbol("]");
  return {line, item_step{std::move(first)}};
}

std::string expression_parser::parse_dotted(std::string_view what) {
  std::string name = in_.expect_identifier(what);
  while (in_.skip_symbol(".")) name += "." + in_.expect_identifier(what);
  return name;
}

chain_step expression_parser::parse_filter() {
  const std::uint32_t line = in_.line();
  const std::string name = parse_dotted("a filter's name");
  const builtin* filter = find_filter(name);
  if (filter == nullptr) token_stream::fail_at(line, "unknown filter '" + name + "'");
  return {line, filter_step{filter, in_.is_symbol("(") ? parse_arguments() : call_arguments()}};
}

std::vector<chain_step> expression_parser::parse_filters(bool bare_first) {
  std::vector<chain_step> filters;
  if (bare_first) filters.push_back(parse_filter());
  while (in_.skip_symbol("|")) filters.push_back(parse_filter());
  return filters;
}

chain_step expression_parser::parse_test() {
  const std::uint32_t line = in_.next().line;
  const bool negated = in_.skip_name("not");
  const std::string name = parse_dotted("a test's name");
  const builtin* test = find_test(name);
  if (test == nullptr) token_stream::fail_at(line, "unknown test '" + name + "'");
  test_step step{test, {}, negated};
  const token_kind kind = in_.current().kind;
  if (in_.is_symbol("(")) {
    step.args = parse_arguments();
  } else if ((kind == token_kind::name || kind == token_kind::string || kind == token_kind::integer || kind == token_kind::floating ||
              in_.is_symbol("[") || in_.is_symbol("{")) &&
             !in_.is_name("else") && !in_.is_name("or") && !in_.is_name("and")) {
    if (in_.is_name("is")) in_.fail("tests cannot be chained with 'is'");
    expression_ptr operand = parse_primary();
    std::vector<chain_step> steps;
    while (parse_postfix(steps)) {
    }
    step.args.positional.push_back(steps.empty() ? std::move(operand) : make(line, chain_node{std::move(operand), std::move(steps)}));
  }
  return {line, std::move(step)};
}

call_arguments expression_parser::parse_arguments() {
  const token_stream::level deeper(in_);
  const std::uint32_t line = in_.line();
  in_.expect_symbol("(");
  call_arguments args;
  auto require = [&](bool fits) {
    if (!fits) token_stream::fail_at(line, "arguments in an order that a call cannot have");
  };
  while (!in_.is_symbol(")")) {
    if (in_.skip_symbol("*")) {
      require(!args.spread && !args.spread_named);
      args.spread = parse();
    } else if (in_.skip_symbol("**")) {
      require(!args.spread_named);
      args.spread_named = parse();
    } else if (in_.is(token_kind::name) && in_.ahead().kind == token_kind::symbol && in_.ahead().text == "=") {
      require(!args.spread_named);
      std::string name = in_.next().text;
      in_.next();
      args.named.emplace_back(std::move(name), parse());
    } else {
      require(!args.spread && !args.spread_named && args.named.empty());
      args.positional.push_back(parse());
    }
    if (!in_.skip_symbol(",")) break;
  }
  in_.expect_symbol(")");
  return args;
}

expression_ptr expression_parser::parse_primary() {
  const std::uint32_t line = in_.line();
  switch (in_.current().kind) {
    case token_kind::name:
      return parse_name();
    case token_kind::integer:
      return constant(line, in_.next().integer);
    case token_kind::floating:
      return constant(line, in_.next().floating);
    case token_kind::string: {
      std::string content = in_.next().text;
      while (in_.is(token_kind::string)) content += in_.next().text;
      return constant(line, cell::literal(content));
    }
    default:
      break;
  }
  if (in_.is_symbol("(")) return parse_parenthesis();
  if (in_.is_symbol("[")) return parse_list();
  if (in_.is_symbol("{")) return parse_dict();
  in_.fail("unexpected token" + in_.found());
}

expression_ptr expression_parser::parse_name() {
  const token name = in_.next();
  if (name.text == "true" || name.text == "True") return constant(name.line, true);
  if (name.text == "false" || name.text == "False") return constant(name.line, false);
  if (name.text == "none" || name.text == "None") return constant(name.line, cell());
  return make(name.line, name_node{in_.intern(name.text)});
}

expression_ptr expression_parser::parse_parenthesis() {
  const token_stream::level deeper(in_);
  in_.expect_symbol("(");
  expression_ptr inside = parse_row_in(true, true);
  in_.expect_symbol(")");
  return inside;
}

expression_ptr expression_parser::parse_list() {
  const token_stream::level deeper(in_);
  const std::uint32_t line = in_.line();
  in_.expect_symbol("[");
  sequence_node node{sequence_kind::list, {}};
  while (!in_.is_symbol("]")) {
    node.items.push_back(parse());
    if (!in_.skip_symbol(",")) break;
  }
  in_.expect_symbol("]");
  return make(line, std::move(node));
}

expression_ptr expression_parser::parse_dict() {
  const token_stream::level deeper(in_);
  const std::uint32_t line = in_.line();
  in_.expect_symbol("{");
  dict_node node;
  while (!in_.is_symbol("}")) {
    expression_ptr key = parse();
    in_.expect_symbol(":");
    node.entries.emplace_back(std::move(key), parse());
    if (!in_.skip_symbol(",")) break;
  }
  in_.expect_symbol("}");
  return make(line, std::move(node));
}

} // namespace troupe::jinja
