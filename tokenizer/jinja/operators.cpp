// Arithmetic, comparison and containment, as Python defines them for these types.
#include <algorithm>
#include <cmath>

#include "tokenizer/jinja/machine.hpp"
#include "tokenizer/jinja/search.hpp"

namespace troupe::jinja {

namespace {

std::string_view symbol(arithmetic_op op) {
  switch (op) {
    case arithmetic_op::add:
      return "+";
    case arithmetic_op::subtract:
      return "-";
    case arithmetic_op::multiply:
      return "*";
    case arithmetic_op::divide:
      return "/";
    case arithmetic_op::floor_divide:
      return "//";
    case arithmetic_op::modulo:
      return "%";
    case arithmetic_op::power:
      return "**";
  }
  return "?";
}

[[noreturn]] void fail_types(std::string_view op, const cell& a, const cell& b) {
  throw render_error("unsupported operand types for " + std::string(op) + ": '" + std::string(a.type_name()) + "' and '" +
                     std::string(b.type_name()) + "'");
}
[[noreturn]] void fail_overflow() { throw render_error("an integer is out of range"); }
[[noreturn]] void fail_zero() { throw render_error("division by zero"); }

std::int64_t checked_multiply(std::int64_t a, std::int64_t b) {
  std::int64_t out = 0;
  if (__builtin_mul_overflow(a, b, &out)) fail_overflow();
  return out;
}

std::int64_t integer_power(std::int64_t base, std::int64_t exponent) {
  std::int64_t out = 1;
  while (true) {
    if ((exponent & 1) != 0) out = checked_multiply(out, base);
    exponent >>= 1;
    if (exponent == 0) return out;
    if (base == 0 || base == 1) continue;
    base = checked_multiply(base, base);
  }
}

cell integers(arithmetic_op op, std::int64_t a, std::int64_t b) {
  std::int64_t out = 0;
  switch (op) {
    case arithmetic_op::add:
      if (__builtin_add_overflow(a, b, &out)) fail_overflow();
      return out;
    case arithmetic_op::subtract:
      if (__builtin_sub_overflow(a, b, &out)) fail_overflow();
      return out;
    case arithmetic_op::multiply:
      return checked_multiply(a, b);
    case arithmetic_op::divide:
      if (b == 0) fail_zero();
      return static_cast<double>(a) / static_cast<double>(b);
    case arithmetic_op::floor_divide:
      if (b == 0) fail_zero();
      if (b == -1) return integers(arithmetic_op::subtract, 0, a);
      return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
    case arithmetic_op::modulo:
      if (b == 0) fail_zero();
      if (b == -1) return 0;
      return a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : 0);
    case arithmetic_op::power:
      if (b >= 0) return integer_power(a, b);
      if (a == 0) fail_zero();
      return std::pow(static_cast<double>(a), static_cast<double>(b));
  }
  return {};
}

cell doubles(arithmetic_op op, double a, double b) {
  switch (op) {
    case arithmetic_op::add:
      return a + b;
    case arithmetic_op::subtract:
      return a - b;
    case arithmetic_op::multiply:
      return a * b;
    case arithmetic_op::divide:
      if (b == 0) fail_zero();
      return a / b;
    case arithmetic_op::floor_divide:
    case arithmetic_op::modulo: {
      if (b == 0) fail_zero();
      double rest = std::fmod(a, b);
      if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
      if (op == arithmetic_op::modulo) return rest == 0 ? std::copysign(0.0, b) : rest;
      const double quotient = (a - rest) / b;
      return quotient == 0 ? std::copysign(0.0, a / b) : std::round(quotient);
    }
    case arithmetic_op::power: {
      if (a == 0 && b < 0) fail_zero();
      if (a < 0 && std::isfinite(a) && std::isfinite(b) && b != std::floor(b)) throw render_error("a root of a negative number");
      const double out = std::pow(a, b);
      if (std::isinf(out) && std::isfinite(a) && std::isfinite(b)) throw render_error("a number is out of range");
      return out;
    }
  }
  return {};
}

cell repeated(machine& m, const cell& base, std::int64_t times) {
  const std::size_t count = times > 0 ? static_cast<std::size_t>(times) : 0;
  std::size_t size = 0;
  if (base.is_text()) {
    if (__builtin_mul_overflow(base.bytes().size(), count, &size)) size = SIZE_MAX;
    m.check_size(size);
    std::string out;
    out.reserve(size);
    if (size > 0) {
      for (std::size_t i = 0; i < count; ++i) out += base.bytes();
    }
    return m.text(std::move(out));
  }
  const auto& items = base.as_sequence().items;
  if (__builtin_mul_overflow(items.size(), count, &size)) size = SIZE_MAX;
  m.charge(size);
  std::vector<cell> out;
  out.reserve(size);
  if (size > 0) {
    for (std::size_t i = 0; i < count; ++i) out.insert(out.end(), items.begin(), items.end());
  }
  return make_sequence(base.as_sequence().kind, std::move(out));
}

bool is_list_or_tuple(const cell& a) { return a.is_sequence(sequence_kind::list) || a.is_sequence(sequence_kind::tuple); }

bool is_set_like(const cell& a) { return a.is_sequence(sequence_kind::dict_keys) || a.is_sequence(sequence_kind::dict_items); }

bool equal_sequences(machine& m, const cell& a, const cell& b) {
  const sequence &x = a.as_sequence(), &y = b.as_sequence();
  if (&x == &y) return true;
  if (x.kind == sequence_kind::iterator || x.kind == sequence_kind::dict_values || y.kind == sequence_kind::iterator) return false;
  if (is_set_like(a) && is_set_like(b)) {
    return x.items.size() == y.items.size() &&
           std::all_of(x.items.begin(), x.items.end(), [&](const cell& i) { return contains(m, b, i); });
  }
  return x.kind == y.kind && x.items.size() == y.items.size() &&
         std::equal(x.items.begin(), x.items.end(), y.items.begin(), [&](const cell& i, const cell& j) { return equal(m, i, j); });
}

bool equal_dicts(machine& m, const dict& a, const dict& b) {
  if (&a == &b) return true;
  return a.size() == b.size() && std::all_of(a.entries().begin(), a.entries().end(), [&](const dict::entry& e) {
           const cell* other = b.find(e.first);
           return other != nullptr && equal(m, e.second, *other);
         });
}

// -1, 0, 1; 2 where a NaN is compared.
int number_order(const cell& a, const cell& b) {
  if (a.is_integral() && b.is_integral()) return a.as_int() < b.as_int() ? -1 : a.as_int() > b.as_int() ? 1 : 0;
  // long double holds every int64 exactly on x86; elsewhere neighbours beyond 2^53 may compare equal to a double.
  const long double x = a.is_double() ? static_cast<long double>(a.as_double()) : static_cast<long double>(a.as_int());
  const long double y = b.is_double() ? static_cast<long double>(b.as_double()) : static_cast<long double>(b.as_int());
  return x < y ? -1 : x > y ? 1 : x == y ? 0 : 2;
}

// Whether a < b, or a <= b with `or_equal`.
bool ordered(machine& m, const cell& a, const cell& b, bool or_equal, std::string_view op) {
  m.charge();
  if (a.is_undefined()) fail_undefined(a);
  if (b.is_undefined()) fail_undefined(b);
  if (a.is_number() && b.is_number()) {
    const int order = number_order(a, b);
    return order == -1 || (or_equal && order == 0);
  }
  if (a.is_text() && b.is_text()) {
    m.charge_bytes(std::min(a.bytes().size(), b.bytes().size()));
    return or_equal ? a.bytes() <= b.bytes() : a.bytes() < b.bytes();
  }
  if (is_list_or_tuple(a) && is_list_or_tuple(b) && a.as_sequence().kind == b.as_sequence().kind) {
    const auto &x = a.as_sequence().items, &y = b.as_sequence().items;
    for (std::size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (!equal(m, x[i], y[i])) return ordered(m, x[i], y[i], or_equal, op);
    }
    return or_equal ? x.size() <= y.size() : x.size() < y.size();
  }
  throw render_error("'" + std::string(op) + "' is not supported between '" + std::string(a.type_name()) + "' and '" +
                     std::string(b.type_name()) + "'");
}

} // namespace

cell arithmetic(machine& m, arithmetic_op op, const cell& a, const cell& b) {
  if (a.is_undefined()) fail_undefined(a);
  if (a.is_text() && op == arithmetic_op::modulo) return m.text(format_percent(m, a.bytes(), b));
  if (b.is_undefined()) fail_undefined(b);
  if (a.is_integral() && b.is_integral()) return integers(op, a.as_int(), b.as_int());
  if (a.is_number() && b.is_number()) return doubles(op, a.as_double(), b.as_double());
  if (op == arithmetic_op::add) {
    if (a.is_text() && b.is_text()) {
      m.check_size(a.bytes().size() + b.bytes().size());
      return m.text(a.bytes() + b.bytes());
    }
    if (is_list_or_tuple(a) && is_list_or_tuple(b) && a.as_sequence().kind == b.as_sequence().kind) {
      std::vector<cell> items = items_of(m, a);
      const std::vector<cell> more = items_of(m, b);
      items.insert(items.end(), more.begin(), more.end());
      return make_sequence(a.as_sequence().kind, std::move(items));
    }
  }
  if (op == arithmetic_op::multiply) {
    if ((a.is_text() || is_list_or_tuple(a)) && b.is_integral()) return repeated(m, a, b.as_int());
    if ((b.is_text() || is_list_or_tuple(b)) && a.is_integral()) return repeated(m, b, a.as_int());
  }
  fail_types(symbol(op), a, b);
}

cell negative(const cell& a) {
  if (a.is_undefined()) fail_undefined(a);
  if (a.is_double()) return -a.as_double();
  if (a.is_integral()) return integers(arithmetic_op::subtract, 0, a.as_int());
  throw render_error("bad operand type for unary -: '" + std::string(a.type_name()) + "'");
}

cell positive(const cell& a) {
  if (a.is_undefined()) fail_undefined(a);
  if (a.is_double()) return a;
  if (a.is_integral()) return a.as_int();
  throw render_error("bad operand type for unary +: '" + std::string(a.type_name()) + "'");
}

bool equal(machine& m, const cell& a, const cell& b) {
  m.charge();
  if (a.is_number() && b.is_number()) return number_order(a, b) == 0;
  if (a.is_text() && b.is_text()) {
    if (a.bytes().size() != b.bytes().size()) return false;
    m.charge_bytes(a.bytes().size());
    return a.bytes() == b.bytes();
  }
  if (a.is_sequence() && b.is_sequence()) return equal_sequences(m, a, b);
  if (a.is_dict() && b.is_dict()) return equal_dicts(m, a.as_dict(), b.as_dict());
  if (a.is_object() && b.is_object()) return a.as_object() == b.as_object();
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

bool less(machine& m, const cell& a, const cell& b) { return ordered(m, a, b, false, "<"); }

bool compare(machine& m, compare_op op, const cell& a, const cell& b) {
  switch (op) {
    case compare_op::equal:
      return equal(m, a, b);
    case compare_op::not_equal:
      return !equal(m, a, b);
    case compare_op::less:
      return ordered(m, a, b, false, "<");
    case compare_op::less_equal:
      return ordered(m, a, b, true, "<=");
    case compare_op::greater:
      return ordered(m, b, a, false, ">");
    case compare_op::greater_equal:
      return ordered(m, b, a, true, ">=");
    case compare_op::in:
      return contains(m, b, a);
    case compare_op::not_in:
      return !contains(m, b, a);
  }
  return false;
}

bool contains(machine& m, const cell& container, const cell& item) {
  if (container.is_text()) {
    if (item.is_undefined()) fail_undefined(item);
    if (!item.is_text()) throw render_error("'in <string>' needs a string on its left, not " + std::string(item.type_name()));
    return find_text(m, container.bytes(), item.bytes(), 0) != std::string_view::npos;
  }
  if (container.is_dict()) {
    m.charge();
    return container.as_dict().find(item) != nullptr;
  }
  if (container.is_sequence() && container.as_sequence().kind != sequence_kind::iterator) {
    const auto& items = container.as_sequence().items;
    return std::any_of(items.begin(), items.end(), [&](const cell& i) { return equal(m, i, item); });
  }
  if (container.is_sequence()) { // read up to the first match
    const sequence& source = container.as_sequence();
    while (source.consumed < source.items.size()) {
      if (equal(m, source.items[source.consumed++], item)) return true;
    }
    return false;
  }
  if (container.is_undefined()) return false;
  throw render_error("argument of type '" + std::string(container.type_name()) + "' is not iterable");
}

} // namespace troupe::jinja
