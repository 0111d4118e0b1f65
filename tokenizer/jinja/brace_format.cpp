// format.format(..)
#include <algorithm>

#include "tokenizer/jinja/layout.hpp"
#include "tokenizer/jinja/unicode.hpp"

namespace troupe::jinja {

namespace {

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
    if (item.is_int() && (integral || floating) && !(integral && how.precision)) return number_layout(machine_, how, item);
    if (item.is_double() && floating) return number_layout(machine_, how, item);
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

std::string format_braces(machine& m, std::string_view format, const arguments& values) { return brace_formatter(m, format, values).run(); }

} // namespace troupe::jinja
