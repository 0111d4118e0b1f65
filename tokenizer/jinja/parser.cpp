#include "tokenizer/jinja/parser.hpp"

#include <algorithm>
#include <initializer_list>

#include "tokenizer/jinja/expression_parser.hpp"

namespace troupe::jinja {

std::string token_stream::found() const {
  switch (current().kind) {
    case token_kind::end:
      return ", found the end of the template";
    case token_kind::variable_end:
    case token_kind::block_end:
      return ", found the end of the tag";
    case token_kind::name:
    case token_kind::symbol:
      return ", found '" + current().text + "'";
    case token_kind::string:
      return ", found a string";
    case token_kind::integer:
    case token_kind::floating:
      return ", found a number";
    default:
      return ", found something else";
  }
}

name_id token_stream::intern(const std::string& name) {
  auto [it, added] = ids_.emplace(name, static_cast<name_id>(names_.size()));
  if (added) {
    names_.push_back(name);
    uses_.push_back(0);
  }
  ++uses_[it->second];
  return it->second;
}

std::size_t token_stream::name_uses(std::string_view name) const {
  auto it = ids_.find(std::string(name));
  return it == ids_.end() ? 0 : uses_[it->second];
}

namespace {

class statement_parser {
 public:
  statement_parser(std::vector<token> tokens, std::size_t max_depth) : in_(std::move(tokens), max_depth), expressions_(in_) {}

  program run() {
    program out;
    out.body = parse_until({});
    out.names = in_.take_names();
    return out;
  }

 private:
  // Statements up to a tag named in `ends`, which is left behind its name; without any, up to the end of the template.
  block parse_until(std::initializer_list<std::string_view> ends) {
    const std::uint32_t opened = in_.line();
    block body;
    while (!in_.is(token_kind::end)) {
      const std::uint32_t line = in_.line();
      if (in_.is(token_kind::data)) {
        body.push_back({line, text_statement{in_.next().text}});
      } else if (in_.is(token_kind::variable_begin)) {
        in_.next();
        body.push_back({line, print_statement{expressions_.parse_row()}});
        in_.expect(token_kind::variable_end, "'}}'");
      } else {
        in_.expect(token_kind::block_begin, "a tag");
        const std::string name = in_.expect_identifier("a tag's name");
        if (std::find(ends.begin(), ends.end(), name) != ends.end()) return end_ = name, std::move(body);
        body.push_back({line, parse_tag(name)});
        in_.expect(token_kind::block_end, "'%}'");
      }
    }
    if (ends.size() > 0) token_stream::fail_at(opened, "a block without its '" + std::string(*(ends.end() - 1)) + "'");
    return body;
  }

  // The inside of a block tag: from behind its opening tag to one of `ends` (then in end_).
  block parse_body(std::initializer_list<std::string_view> ends) {
    const token_stream::level deeper(in_);
    in_.skip_symbol(":");
    in_.expect(token_kind::block_end, "'%}'");
    return parse_until(ends);
  }

  decltype(statement::node) parse_tag(const std::string& name) {
    if (name == "if") return parse_if();
    if (name == "for") return parse_for();
    if (name == "set") return parse_set();
    if (name == "macro") return parse_macro();
    if (name == "call") return parse_call();
    if (name == "filter") return parse_filter_block();
    if (name == "with") return parse_with();
    if (name == "generation") return scope_statement{outside_loops([&] { return parse_body({"endgeneration"}); })};
    if (name == "break" || name == "continue") {
      if (loops_ == 0) in_.fail("'" + name + "' outside a loop");
      return jump_statement{name == "break" ? jump::leave : jump::next};
    }
    in_.fail("unknown tag '" + name + "'");
  }

  if_statement parse_if() {
    if_statement node;
    do {
      expression_ptr test = expressions_.parse_row(false);
      node.branches.emplace_back(std::move(test), parse_body({"elif", "else", "endif"}));
    } while (end_ == "elif");
    if (end_ == "else") node.otherwise = parse_body({"endif"});
    return node;
  }

  for_statement parse_for() {
    for_statement node;
    node.item = parse_target(false);
    in_.expect_name("in");
    node.rows = expressions_.parse_row(false);
    if (in_.skip_name("if")) node.condition = expressions_.parse();
    if (in_.is_name("recursive")) in_.fail("recursive loops are not supported");
    ++loops_;
    node.body = parse_body({"else", "endfor"});
    --loops_;
    if (end_ == "else") node.otherwise = parse_body({"endfor"});
    return node;
  }

  decltype(statement::node) parse_set() {
    target place = parse_target(true);
    if (in_.skip_symbol("=")) return set_statement{std::move(place), expressions_.parse_row()};
    std::vector<chain_step> filters = expressions_.parse_filters(false);
    return set_block_statement{std::move(place), std::move(filters), parse_body({"endset"})};
  }

  with_statement parse_with() {
    with_statement node;
    while (!in_.is(token_kind::block_end)) {
      if (!node.variables.empty()) in_.expect_symbol(",");
      target place = parse_target(false);
      in_.expect_symbol("=");
      node.variables.emplace_back(std::move(place), expressions_.parse());
    }
    node.body = parse_body({"endwith"});
    return node;
  }

  filter_statement parse_filter_block() {
    filter_statement node;
    node.filters = expressions_.parse_filters(true);
    node.body = parse_body({"endfilter"});
    return node;
  }

  macro_statement parse_macro() {
    const std::string name = in_.expect_identifier("the macro's name");
    return {in_.intern(name), parse_callable(name, "endmacro")};
  }

  call_statement parse_call() {
    std::vector<parameter> parameters;
    if (in_.is_symbol("(")) parameters = parse_parameters();
    call_statement node;
    node.call = expressions_.parse();
    auto* chain = std::get_if<chain_node>(&node.call->node);
    if (chain == nullptr || !std::holds_alternative<call_step>(chain->steps.back().what)) in_.fail("a call block needs a call");
    node.caller = parse_callable_body("caller", std::move(parameters), "endcall");
    return node;
  }

  std::shared_ptr<const callable_body> parse_callable(const std::string& name, std::string_view end) {
    auto parameters = parse_parameters();
    return parse_callable_body(name, std::move(parameters), end);
  }

  std::shared_ptr<const callable_body> parse_callable_body(const std::string& name, std::vector<parameter> parameters,
                                                           std::string_view end) {
    auto made = std::make_shared<callable_body>();
    made->name = name;
    made->parameters = std::move(parameters);
    const std::size_t varargs = in_.name_uses("varargs"), kwargs = in_.name_uses("kwargs"), caller = in_.name_uses("caller");
    made->body = outside_loops([&] { return parse_body({end}); });
    made->takes_varargs = in_.name_uses("varargs") > varargs;
    made->takes_kwargs = in_.name_uses("kwargs") > kwargs;
    made->takes_caller = in_.name_uses("caller") > caller;
    return made;
  }

  std::vector<parameter> parse_parameters() {
    std::vector<parameter> out;
    in_.expect_symbol("(");
    while (!in_.is_symbol(")")) {
      if (!out.empty()) in_.expect_symbol(",");
      parameter made{in_.intern(in_.expect_identifier("a parameter's name")), nullptr};
      if (in_.skip_symbol("=")) {
        made.fallback = expressions_.parse();
      } else if (!out.empty() && out.back().fallback) {
        in_.fail("a parameter without a default behind one that has one");
      }
      out.push_back(std::move(made));
    }
    in_.expect_symbol(")");
    return out;
  }

  // A break inside belongs to no loop outside.
  template <class Parse>
  block outside_loops(Parse parse) {
    const std::size_t outer = std::exchange(loops_, 0);
    block body = parse();
    loops_ = outer;
    return body;
  }

  target parse_target(bool attributes) {
    const token_stream::level deeper(in_);
    target first = parse_single_target(attributes);
    if (!in_.is_symbol(",")) return first;
    target row;
    row.row = true;
    row.parts.push_back(std::move(first));
    while (in_.skip_symbol(",") && (in_.is(token_kind::name) || in_.is_symbol("(")) && !in_.is_name("in"))
      row.parts.push_back(parse_single_target(attributes));
    return row;
  }

  target parse_single_target(bool attributes) {
    if (in_.skip_symbol("(")) {
      target inside = parse_target(attributes);
      in_.expect_symbol(")");
      return inside;
    }
    static constexpr std::string_view constants[] = {"true", "false", "none", "True", "False", "None"};
    target out;
    const std::string name = in_.expect_identifier("a name to assign to");
    if (std::find(std::begin(constants), std::end(constants), name) != std::end(constants))
      in_.fail("'" + name + "' cannot be assigned to");
    out.name = in_.intern(name);
    if (attributes && in_.skip_symbol(".")) out.attribute = in_.expect_identifier("an attribute's name");
    return out;
  }

  token_stream in_;
  expression_parser expressions_;
  std::string end_; // the tag that ended the last body
  std::size_t loops_ = 0;
};

} // namespace

program parse(std::string_view source, std::size_t max_depth) { return statement_parser(tokenize(source), max_depth).run(); }

} // namespace troupe::jinja
