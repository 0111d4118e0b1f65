// A parsed template. Chains (a + b + c, x.y|f is t, elif ..) are flat, so the depth of the tree is the nesting of the source.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tokenizer/jinja/cell.hpp"
#include "tokenizer/jinja/machine.hpp"

namespace troupe::jinja {

using name_id = std::uint32_t; // index into program::names

struct expression;
using expression_ptr = std::unique_ptr<expression>;
struct statement;
using block = std::vector<statement>;

struct call_arguments {
  std::vector<expression_ptr> positional;
  std::vector<std::pair<std::string, expression_ptr>> named;
  expression_ptr spread;       // *args
  expression_ptr spread_named; // **kwargs
};

// What may follow an operand, applied from left to right.
struct attribute_step {
  std::string name;
};
struct item_step {
  expression_ptr key;
};
struct slice_step {
  expression_ptr start, stop, step;
};
struct call_step {
  call_arguments args;
};
struct filter_step {
  const builtin* filter;
  call_arguments args;
};
struct test_step {
  const builtin* test;
  call_arguments args;
  bool negated;
};
struct chain_step {
  std::uint32_t line;
  std::variant<attribute_step, item_step, slice_step, call_step, filter_step, test_step> what;
};

struct constant_node {
  cell value;
};
struct name_node {
  name_id name;
};
struct sequence_node {
  sequence_kind kind;
  std::vector<expression_ptr> items;
};
struct dict_node {
  std::vector<std::pair<expression_ptr, expression_ptr>> entries;
};
struct sign_node {
  bool minus;
  expression_ptr operand;
};
struct not_node {
  expression_ptr operand;
};
struct logic_node {
  bool any;
  std::vector<expression_ptr> operands;
}; // any: or; else and
struct compare_node {
  expression_ptr first;
  std::vector<std::pair<compare_op, expression_ptr>> rest;
};
struct arithmetic_node {
  expression_ptr first;
  std::vector<std::pair<arithmetic_op, expression_ptr>> rest;
};
struct concat_node {
  std::vector<expression_ptr> items;
};
struct condition_node {                 // item if test else ..; each further test looks at what came before, as in Jinja2
  expression_ptr item, test, otherwise; // otherwise may be empty
};
struct chain_node {
  expression_ptr base;
  std::vector<chain_step> steps;
};

struct expression {
  std::uint32_t line;
  std::variant<constant_node, name_node, sequence_node, dict_node, sign_node, not_node, logic_node, compare_node, arithmetic_node,
               concat_node, condition_node, chain_node>
      node;
};

// What can be assigned to: a name, an attribute of a namespace, or a row of targets.
struct target {
  name_id name = 0;
  std::optional<std::string> attribute;
  bool row = false;
  std::vector<target> parts; // of a row
};

struct text_statement {
  std::string text;
};
struct print_statement {
  expression_ptr item;
};
struct if_statement {
  std::vector<std::pair<expression_ptr, block>> branches;
  block otherwise;
};
struct for_statement {
  target item;
  expression_ptr rows;
  expression_ptr condition; // may be empty
  block body;
  block otherwise;
};
struct set_statement {
  target place;
  expression_ptr item;
};
struct set_block_statement {
  target place;
  std::vector<chain_step> filters;
  block body;
};
struct with_statement {
  std::vector<std::pair<target, expression_ptr>> variables;
  block body;
};
struct filter_statement {
  std::vector<chain_step> filters;
  block body;
};
struct parameter {
  name_id name;
  expression_ptr fallback; // may be empty
};
struct callable_body {
  std::string name;
  std::vector<parameter> parameters;
  bool takes_varargs = false, takes_kwargs = false, takes_caller = false; // its body speaks of them
  block body;
};
struct macro_statement {
  name_id name;
  std::shared_ptr<const callable_body> macro;
};
struct call_statement {
  expression_ptr call; // a chain that ends with a call_step
  std::shared_ptr<const callable_body> caller;
};
struct scope_statement {
  block body;
}; // {% generation %}
enum class jump : std::uint8_t { none, leave, next };
struct jump_statement {
  jump where;
};

struct statement {
  std::uint32_t line;
  std::variant<text_statement, print_statement, if_statement, for_statement, set_statement, set_block_statement, with_statement,
               filter_statement, macro_statement, call_statement, scope_statement, jump_statement>
      node;
};

struct program {
  std::vector<std::string> names;
  block body;
};

} // namespace troupe::jinja
