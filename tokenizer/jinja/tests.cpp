// The tests behind `is`, and the table of filters.
#include <algorithm>
#include <array>

#include "tokenizer/jinja/machine.hpp"
#include "tokenizer/jinja/parameters.hpp"
#include "tokenizer/jinja/tables.hpp"

namespace troupe::jinja {

namespace {

template <bool (*test)(const cell&)>
cell kind_test(machine&, const cell& self, const arguments& args) {
  const parameters none("the test", args, {});
  return test(self);
}

bool is_defined(const cell& c) { return !c.is_undefined(); }
bool is_undefined(const cell& c) { return c.is_undefined(); }
bool is_none(const cell& c) { return c.is_none(); }
bool is_boolean(const cell& c) { return c.is_bool(); }
bool is_true(const cell& c) { return c.is_bool() && c.as_bool(); }
bool is_false(const cell& c) { return c.is_bool() && !c.as_bool(); }
bool is_integer(const cell& c) { return c.is_int(); }
bool is_float(const cell& c) { return c.is_double(); }
bool is_number(const cell& c) { return c.is_number(); }
bool is_string(const cell& c) { return c.is_text(); }
bool is_mapping(const cell& c) { return c.is_dict(); }
bool is_callable(const cell& c) { return c.is_callable() || c.is_undefined(); } // Undefined has a __call__ that fails
bool is_escaped(const cell&) { return false; }
bool is_sequence(const cell& c) {
  return c.is_text() || c.is_dict() || c.is_undefined() || c.is_sequence(sequence_kind::list) || c.is_sequence(sequence_kind::tuple) ||
         c.is_sequence(sequence_kind::range);
}

template <std::int64_t rest>
cell parity_test(machine& m, const cell& self, const arguments& args) {
  const parameters none("the test", args, {});
  return equal(m, arithmetic(m, arithmetic_op::modulo, self, 2), rest);
}

cell divisible_test(machine& m, const cell& self, const arguments& args) {
  const parameters p("divisibleby", args, {"num"}, 1);
  return equal(m, arithmetic(m, arithmetic_op::modulo, self, p.at(0)), 0);
}

template <compare_op op>
cell compare_test(machine& m, const cell& self, const arguments& args) {
  const parameters p("the test", args, {"other"}, 1);
  return compare(m, op, self, p.at(0));
}

cell same_test(machine&, const cell& self, const arguments& args) {
  const parameters p("sameas", args, {"other"}, 1);
  return self.same_object(p.at(0));
}

template <bool (*test)(std::string_view)>
cell case_test(machine& m, const cell& self, const arguments& args) {
  const parameters none("the test", args, {});
  return test(to_string(m, self));
}

template <const builtin* (*find)(std::string_view)>
cell exists_test(machine&, const cell& self, const arguments& args) {
  const parameters none("the test", args, {});
  return self.is_text() && find(self.bytes()) != nullptr;
}

constexpr std::array<builtin, 39> tests = {{
    {"!=", compare_test<compare_op::not_equal>},
    {"<", compare_test<compare_op::less>},
    {"<=", compare_test<compare_op::less_equal>},
    {"==", compare_test<compare_op::equal>},
    {">", compare_test<compare_op::greater>},
    {">=", compare_test<compare_op::greater_equal>},
    {"boolean", kind_test<is_boolean>},
    {"callable", kind_test<is_callable>},
    {"defined", kind_test<is_defined>},
    {"divisibleby", divisible_test},
    {"eq", compare_test<compare_op::equal>},
    {"equalto", compare_test<compare_op::equal>},
    {"escaped", kind_test<is_escaped>},
    {"even", parity_test<0>},
    {"false", kind_test<is_false>},
    {"filter", exists_test<find_filter>},
    {"float", kind_test<is_float>},
    {"ge", compare_test<compare_op::greater_equal>},
    {"greaterthan", compare_test<compare_op::greater>},
    {"gt", compare_test<compare_op::greater>},
    {"in", compare_test<compare_op::in>},
    {"integer", kind_test<is_integer>},
    {"iterable", kind_test<is_iterable>},
    {"le", compare_test<compare_op::less_equal>},
    {"lessthan", compare_test<compare_op::less>},
    {"lower", case_test<is_lower>},
    {"lt", compare_test<compare_op::less>},
    {"mapping", kind_test<is_mapping>},
    {"ne", compare_test<compare_op::not_equal>},
    {"none", kind_test<is_none>},
    {"number", kind_test<is_number>},
    {"odd", parity_test<1>},
    {"sameas", same_test},
    {"sequence", kind_test<is_sequence>},
    {"string", kind_test<is_string>},
    {"test", exists_test<find_test>},
    {"true", kind_test<is_true>},
    {"undefined", kind_test<is_undefined>},
    {"upper", case_test<is_upper>},
}};

const builtin* find_in(std::span<const builtin> table, std::string_view name) {
  auto it = std::find_if(table.begin(), table.end(), [&](const builtin& b) { return b.name == name; });
  return it == table.end() ? nullptr : &*it;
}

} // namespace

const builtin* find_test(std::string_view name) { return find_in(tests, name); }

const builtin* find_filter(std::string_view name) {
  for (const auto table : {value_filters(), sequence_filters(), select_filters()}) {
    if (const builtin* found = find_in(table, name)) return found;
  }
  return nullptr;
}

} // namespace troupe::jinja
