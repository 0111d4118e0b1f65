// Runs a program.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/value.hpp"
#include "tokenizer/jinja/ast.hpp"
#include "tokenizer/jinja/scope.hpp"

namespace troupe::jinja {

cell to_cell(machine& m, const value& item);

class interpreter {
 public:
  interpreter(machine& m, const program& code) : machine_(m), program_(code) {}

  // The text that `code` makes of `variables`. Throws render_error.
  std::string run(const value_object& variables);
  // Where the last error came up.
  std::uint32_t line() const { return line_; }

 private:
  friend class macro_object;
  class frame;   // a scope while it lives
  class capture; // output goes to a string while it lives

  // execute.cpp
  jump execute(const block& body);
  jump execute(const statement& item);
  jump run(const text_statement& node);
  jump run(const print_statement& node);
  jump run(const if_statement& node);
  jump run(const for_statement& node);
  jump run(const set_statement& node);
  jump run(const set_block_statement& node);
  jump run(const with_statement& node);
  jump run(const filter_statement& node);
  jump run(const macro_statement& node);
  jump run(const call_statement& node);
  jump run(const scope_statement& node);
  jump run(const jump_statement& node) { return node.where; }
  // The text that `body` makes in a scope of its own, through `filters`; nothing when a jump leaves it.
  jump run_captured(const block& body, const std::vector<chain_step>& filters, cell& out);
  cell call_macro(const callable_body& body, scope* closure, arguments args);
  void bind_parameters(const callable_body& body, arguments& args);
  std::vector<cell> rows_of(const for_statement& node);
  void assign(const target& place, cell item);

  // evaluate.cpp
  cell evaluate(const expression& item);
  cell evaluate_or_none(const expression_ptr& item) { return item ? evaluate(*item) : cell(); }
  cell evaluate_name(name_id name);
  cell evaluate_logic(const logic_node& node);
  bool evaluate_compare(const compare_node& node);
  cell evaluate_chain(const chain_node& node, const cell* caller);
  cell apply(const chain_step& step, const cell& base, const cell* caller);
  arguments evaluate_arguments(const call_arguments& args);

  machine& machine_;
  const program& program_;
  scope_pool scopes_;
  scope* scope_ = nullptr;
  std::string out_;
  std::uint32_t line_ = 0;
  std::optional<name_id> loop_, varargs_, kwargs_, caller_; // where the program speaks of them
};

} // namespace troupe::jinja
