// The three little format languages: format % values, format.format(..) and strftime.
#include <time.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "tokenizer/jinja/machine.hpp"
#include "tokenizer/jinja/unicode.hpp"
#include "tokenizer/utf8.hpp"

namespace troupe::jinja {

namespace {

constexpr std::int64_t kMaxPrecision = 300;

// How one value is to be laid out; both format languages come down to this.
struct layout {
  std::string fill = " ";
  char align = 0; // < > ^ =; 0 is the type's own
  char sign = '-';
  bool alternate = false;
  char grouping = 0;
  std::int64_t width = 0;
  std::optional<std::int64_t> precision;
  char type = 0;
};

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
    case 'e': return fixed_digits(magnitude, std::chars_format::scientific, precision);
    case '%': return fixed_digits(magnitude * 100, std::chars_format::fixed, precision) + "%";
    case 'f': return fixed_digits(magnitude, std::chars_format::fixed, precision);
    default: break;
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

std::string number(machine& m, const layout& how, const cell& item) {
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
    std::transform(digits.begin(), digits.end(), digits.begin(), [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; });
  }
  const std::string sign = negative ? "-" : how.sign == '+' ? "+" : how.sign == ' ' ? " " : "";
  return laid_out(m, how, sign, digits, how.align == 0 ? '>' : how.align);
}

std::string text_layout(machine& m, const layout& how, std::string_view text) {
  if (how.precision) text = text.substr(0, unicode::offset(text, static_cast<std::size_t>(*how.precision)));
  return laid_out(m, how, "", std::string(text), how.align == 0 ? '<' : how.align);
}

// A reader over a format string.
struct scanner {
  std::string_view text;
  std::size_t at = 0;

  bool done() const { return at >= text.size(); }
  char peek() const { return done() ? '\0' : text[at]; }
  char next() {
    if (done()) throw render_error("incomplete format");
    return text[at++];
  }
  bool skip(char c) {
    if (peek() != c) return false;
    ++at;
    return true;
  }
  std::optional<std::int64_t> number() {
    if (peek() < '0' || peek() > '9') return std::nullopt;
    std::int64_t value = 0;
    while (peek() >= '0' && peek() <= '9') {
      value = value * 10 + (text[at++] - '0');
      if (value > INT32_MAX) throw render_error("a number in a format is too large");
    }
    return value;
  }
};

class percent_formatter {
 public:
  percent_formatter(machine& m, std::string_view format, const cell& values) : machine_(m), in_{format}, values_(values) {}

  std::string run() {
    while (!in_.done()) {
      const std::size_t start = in_.at;
      while (!in_.done() && in_.peek() != '%') ++in_.at;
      machine_.append(out_, in_.text.substr(start, in_.at - start));
      if (in_.skip('%')) conversion();
    }
    if (used_ < count() && !values_.is_dict()) throw render_error("not all arguments converted during string formatting");
    return std::move(out_);
  }

 private:
  std::size_t count() const { return values_.is_sequence(sequence_kind::tuple) ? values_.as_sequence().items.size() : 1; }

  const cell& next() {
    if (used_ >= count()) throw render_error("not enough arguments for format string");
    ++used_;
    return values_.is_sequence(sequence_kind::tuple) ? values_.as_sequence().items[used_ - 1] : values_;
  }

  void conversion() {
    const cell* named = nullptr;
    if (in_.skip('(')) {
      const std::size_t end = in_.text.find(')', in_.at);
      if (!values_.is_dict() || end == std::string_view::npos) throw render_error("format requires a mapping");
      named = values_.as_dict().find(in_.text.substr(in_.at, end - in_.at));
      if (named == nullptr) throw render_error("a key of the format is not in the mapping");
      in_.at = end + 1;
    }
    layout how;
    how.align = '>';
    for (bool flag = true; flag;) {
      switch (in_.peek()) {
        case '-': how.align = '<'; break;
        case '+': how.sign = '+'; break;
        case ' ': how.sign = how.sign == '+' ? '+' : ' '; break;
        case '#': how.alternate = true; break;
        case '0':
          how.fill = "0";
          how.align = how.align == '<' ? '<' : '=';
          break;
        default: flag = false; continue;
      }
      ++in_.at;
    }
    how.width = size().value_or(0);
    if (how.width < 0) {
      how.align = '<';
      how.width = -how.width;
    }
    if (how.align == '<') how.fill = " ";
    if (in_.skip('.')) how.precision = std::max<std::int64_t>(size().value_or(0), 0);
    how.type = in_.next();
    if (how.type == '%') {
      out_ += '%';
    } else {
      machine_.append(out_, converted(how, named != nullptr ? *named : next()));
    }
  }

  std::optional<std::int64_t> size() {
    if (!in_.skip('*')) return in_.number();
    const cell& given = next();
    if (!given.is_integral()) throw render_error("* wants an integer");
    return std::clamp<std::int64_t>(given.as_int(), -INT32_MAX, INT32_MAX);
  }

  std::string converted(layout& how, const cell& item) {
    switch (how.type) {
      case 's':
      case 'r':
      case 'a':
        if (how.align == '=') how.align = '>';
        how.fill = " ";
        return text_layout(machine_, how, how.type == 's' ? to_string(machine_, item) : repr(machine_, item));
      case 'c': return text_layout(machine_, how, character(item));
      case 'd':
      case 'i':
      case 'u':
      case 'x':
      case 'X':
      case 'o':
        if (item.is_undefined()) fail_undefined(item);
        if (item.is_double() && std::string_view("diu").find(how.type) != std::string_view::npos) {
          how.type = 'd';
          return number(machine_, how, truncated(item.as_double()));
        }
        if (!item.is_integral()) throw render_error("a number is required by the format, not " + std::string(item.type_name()));
        return number(machine_, how, item);
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G':
        if (item.is_undefined()) fail_undefined(item);
        if (!item.is_number()) throw render_error("a real number is required by the format, not " + std::string(item.type_name()));
        return number(machine_, how, item);
      default: throw render_error("unsupported format character");
    }
  }

  std::string character(const cell& item) {
    if (item.is_text() && item.as_text().length == 1) return item.bytes();
    if (!item.is_int() || item.as_int() < 0 || item.as_int() > 0x10FFFF) throw render_error("%c requires one character");
    std::string out;
    const auto c = static_cast<char32_t>(item.as_int());
    utf8::append(out, c >= 0xD800 && c < 0xE000 ? U'\uFFFD' : c);
    return out;
  }

  static std::int64_t truncated(double value) {
    if (!(std::fabs(value) < 9.2e18)) throw render_error("a number is out of range");
    return static_cast<std::int64_t>(value);
  }

  machine& machine_;
  scanner in_;
  const cell& values_;
  std::size_t used_ = 0;
  std::string out_;
};

class brace_formatter {
 public:
  brace_formatter(machine& m, std::string_view format, const arguments& values) : machine_(m), in_{format}, values_(values) {}

  std::string run() {
    while (!in_.done()) {
      const char c = in_.next();
      if (c == '{' && !in_.skip('{')) {
        field();
      } else {
        if (c == '}' && !in_.skip('}')) throw render_error("format: single '}'");
        out_ += c;
      }
    }
    machine_.charge_bytes(in_.text.size());
    return std::move(out_);
  }

 private:
  void field() {
    cell item = value();
    if (in_.skip('!')) {
      const char conversion = in_.next();
      if (conversion != 's' && conversion != 'r') throw render_error("format: unknown conversion");
      item = machine_.text(conversion == 's' ? to_string(machine_, item) : repr(machine_, item));
    }
    layout how;
    if (in_.skip(':')) how = spec();
    if (!in_.skip('}')) throw render_error("format: expected '}'");
    machine_.append(out_, formatted(how, item));
  }

  std::string_view name_until(std::string_view ends) {
    const std::size_t start = in_.at;
    while (!in_.done() && ends.find(in_.peek()) == std::string_view::npos) ++in_.at;
    return in_.text.substr(start, in_.at - start);
  }

  static std::optional<std::int64_t> as_index(std::string_view name) {
    scanner digits{name};
    auto index = digits.number();
    return digits.done() ? index : std::nullopt;
  }

  cell value() {
    const std::string_view name = name_until(".[!:}");
    cell item;
    if (auto index = name.empty() ? std::optional(next_++) : as_index(name)) {
      if (static_cast<std::size_t>(*index) >= values_.positional.size()) throw render_error("format: not enough arguments");
      item = values_.positional[static_cast<std::size_t>(*index)];
    } else {
      auto it = std::find_if(values_.named.begin(), values_.named.end(), [&](const auto& n) { return n.first == name; });
      if (it == values_.named.end()) throw render_error("format: no argument for a named field");
      item = it->second;
    }
    while (true) {
      if (in_.skip('.')) {
        item = get_attribute(machine_, item, name_until(".[!:}"));
      } else if (in_.skip('[')) {
        const std::string_view key = name_until("]");
        in_.next();
        auto index = as_index(key);
        item = get_item(machine_, item, index ? cell(*index) : machine_.text(key));
      } else {
        return item;
      }
    }
  }

  layout spec() {
    layout how;
    std::size_t after = in_.at;
    if (!in_.done()) unicode::decode(in_.text, after);
    auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
    if (after < in_.text.size() && is_align(in_.text[after])) {
      how.fill = in_.text.substr(in_.at, after - in_.at);
      how.align = in_.text[after];
      in_.at = after + 1;
    } else if (is_align(in_.peek())) {
      how.align = in_.next();
    }
    if (in_.peek() == '+' || in_.peek() == '-' || in_.peek() == ' ') how.sign = in_.next();
    how.alternate = in_.skip('#');
    if (in_.skip('0') && how.align == 0) {
      how.fill = "0";
      how.align = '=';
    }
    how.width = in_.number().value_or(0);
    if (in_.peek() == ',' || in_.peek() == '_') how.grouping = in_.next();
    if (in_.skip('.')) {
      how.precision = in_.number();
      if (!how.precision) throw render_error("format: missing precision");
    }
    if (in_.peek() != '}') how.type = in_.next();
    return how;
  }

  std::string formatted(layout& how, const cell& item) {
    const bool plain = how.type == 0 && how.align == 0 && how.width == 0 && !how.precision && how.grouping == 0;
    if (plain && how.sign == '-') return to_string(machine_, item);
    const bool integral = how.type == 0 || std::string_view("dxXob").find(how.type) != std::string_view::npos;
    const bool floating = how.type == 0 || std::string_view("eEfFgG%").find(how.type) != std::string_view::npos;
    if (item.is_int() && (integral || floating) && !(integral && how.precision)) return number(machine_, how, item);
    if (item.is_double() && floating) return number(machine_, how, item);
    if (item.is_text() && (how.type == 0 || how.type == 's') && how.align != '=') return text_layout(machine_, how, item.bytes());
    throw render_error("format: the specification does not suit a " + std::string(item.type_name()));
  }

  machine& machine_;
  scanner in_;
  const arguments& values_;
  std::int64_t next_ = 0;
  std::string out_;
};

} // namespace

std::string format_percent(machine& m, std::string_view format, const cell& values) { return percent_formatter(m, format, values).run(); }
std::string format_braces(machine& m, std::string_view format, const arguments& values) { return brace_formatter(m, format, values).run(); }

std::string format_time(std::string_view format, std::int64_t unix_seconds) {
  const auto seconds = static_cast<time_t>(unix_seconds);
  struct tm utc = {};
  if (gmtime_r(&seconds, &utc) == nullptr) throw render_error("strftime_now: the time is out of range");
  std::string out;
  for (std::size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') {
      out += format[i];
      continue;
    }
    std::string directive = "%";
    while (++i < format.size() && std::string_view("-_0^#").find(format[i]) != std::string_view::npos) directive += format[i];
    if (i >= format.size() || directive.size() > 4 || std::string_view("aAbBcCdDeFgGhHIjklmMnpPrRsStTuUVwWxXyYzZ%").find(format[i]) == std::string_view::npos) {
      throw render_error("strftime_now: unknown directive");
    }
    directive += format[i];
    char buffer[128];
    out.append(buffer, strftime(buffer, sizeof buffer, directive.c_str(), &utc));
  }
  return out;
}

} // namespace troupe::jinja
