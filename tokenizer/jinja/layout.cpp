#include "tokenizer/jinja/layout.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "tokenizer/jinja/unicode.hpp"

namespace troupe::jinja {

namespace {

constexpr std::int64_t kMaxPrecision = 300;

std::string grouped(const std::string& digits, char mark) {
  std::string out;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) out += mark;
    out += digits[i];
  }
  return out;
}

std::string fixed_digits(double magnitude, std::chars_format style, std::int64_t precision) {
  if (precision > kMaxPrecision) throw render_error("the precision of a number is too large");
  char buffer[700];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, magnitude, style, static_cast<int>(precision)).ptr;
  return {buffer, end};
}

std::string float_digits(const layout& how, double magnitude) {
  if (!std::isfinite(magnitude)) return std::isnan(magnitude) ? "nan" : "inf";
  const std::int64_t precision = how.precision.value_or(6);
  switch (how.type | 0x20) {
    case 'e':
      return fixed_digits(magnitude, std::chars_format::scientific, precision);
    case '%':
      return fixed_digits(magnitude * 100, std::chars_format::fixed, precision) + "%";
    case 'f':
      return fixed_digits(magnitude, std::chars_format::fixed, precision);
    default:
      break;
  }
  if (how.type == 0 && !how.precision) return float_repr(magnitude);
  return fixed_digits(magnitude, std::chars_format::general, std::max<std::int64_t>(precision, 1));
}

std::string integer_digits(const layout& how, std::uint64_t magnitude) {
  const int base = how.type == 'x' || how.type == 'X' ? 16 : how.type == 'o' ? 8 : how.type == 'b' ? 2 : 10;
  char buffer[70];
  std::string out(buffer, std::to_chars(buffer, buffer + sizeof buffer, magnitude, base).ptr);
  if (base == 10 || !how.alternate) return out;
  return (base == 16 ? "0x" : base == 8 ? "0o" : "0b") + out;
}

// `body` with its sign, filled up to the width.
std::string laid_out(machine& m, const layout& how, const std::string& sign, const std::string& body, char align) {
  const auto length = static_cast<std::int64_t>(sign.size() + unicode::length(body));
  if (how.width <= length) return sign + body;
  const auto room = static_cast<std::size_t>(how.width - length);
  if (align == '=') return sign + pad(m, body, room, 0, how.fill);
  const std::size_t left = align == '<' ? 0 : align == '>' ? room : room / 2;
  return pad(m, sign + body, left, room - left, how.fill);
}

} // namespace

std::string number_layout(machine& m, const layout& how, const cell& item) {
  const bool floating = item.is_double() || std::string_view("eEfFgG%").find(how.type == 0 ? 'd' : how.type) != std::string_view::npos;
  const bool negative = floating ? std::signbit(item.as_double()) : item.as_int() < 0;
  std::string digits;
  if (floating) {
    digits = float_digits(how, std::fabs(item.as_double()));
  } else {
    const auto bits = static_cast<std::uint64_t>(item.as_int());
    digits = integer_digits(how, negative ? 0 - bits : bits);
    if (how.precision && digits.size() < static_cast<std::size_t>(std::min(*how.precision, kMaxPrecision))) {
      digits.insert(0, static_cast<std::size_t>(std::min(*how.precision, kMaxPrecision)) - digits.size(), '0');
    }
  }
  if (how.grouping != 0) {
    const std::size_t whole = std::min(digits.find_first_not_of("0123456789"), digits.size());
    digits = grouped(digits.substr(0, whole), how.grouping) + digits.substr(whole);
  }
  if (how.type == 'E' || how.type == 'G' || how.type == 'X' || how.type == 'F') {
    std::transform(digits.begin(), digits.end(), digits.begin(),
                   [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; });
  }
  const std::string sign = negative ? "-" : how.sign == '+' ? "+" : how.sign == ' ' ? " " : "";
  return laid_out(m, how, sign, digits, how.align == 0 ? '>' : how.align);
}

std::string text_layout(machine& m, const layout& how, std::string_view text) {
  if (how.precision) text = text.substr(0, unicode::offset(text, static_cast<std::size_t>(*how.precision)));
  return laid_out(m, how, "", std::string(text), how.align == 0 ? '<' : how.align);
}

} // namespace troupe::jinja
