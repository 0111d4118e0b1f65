// format % values
#include <algorithm>
#include <cmath>

#include "tokenizer/jinja/layout.hpp"
#include "tokenizer/utf8.hpp"

namespace troupe::jinja {

namespace {

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
        case '-':
          how.align = '<';
          break;
        case '+':
          how.sign = '+';
          break;
        case ' ':
          how.sign = how.sign == '+' ? '+' : ' ';
          break;
        case '#':
          how.alternate = true;
          break;
        case '0':
          how.fill = "0";
          how.align = how.align == '<' ? '<' : '=';
          break;
        default:
          flag = false;
          continue;
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
      case 'c':
        return text_layout(machine_, how, character(item));
      case 'd':
      case 'i':
      case 'u':
      case 'x':
      case 'X':
      case 'o':
        if (item.is_undefined()) fail_undefined(item);
        if (item.is_double() && std::string_view("diu").find(how.type) != std::string_view::npos) {
          how.type = 'd';
          return number_layout(machine_, how, truncated(item.as_double()));
        }
        if (!item.is_integral()) throw render_error("a number is required by the format, not " + std::string(item.type_name()));
        return number_layout(machine_, how, item);
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G':
        if (item.is_undefined()) fail_undefined(item);
        if (!item.is_number()) throw render_error("a real number is required by the format, not " + std::string(item.type_name()));
        return number_layout(machine_, how, item);
      default:
        throw render_error("unsupported format character");
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

} // namespace

std::string format_percent(machine& m, std::string_view format, const cell& values) { return percent_formatter(m, format, values).run(); }

} // namespace troupe::jinja
