// Filters of one value: text, numbers, JSON. Meanings and parameters are Jinja2's; tojson is that of transformers.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "tokenizer/jinja/machine.hpp"
#include "tokenizer/jinja/parameters.hpp"
#include "tokenizer/jinja/search.hpp"
#include "tokenizer/jinja/tables.hpp"
#include "tokenizer/jinja/unicode.hpp"

namespace troupe::jinja {

namespace {

cell default_filter(machine&, const cell& self, const arguments& args) {
  const parameters p("default", args, {"default_value", "boolean"});
  return self.is_undefined() || (p.truth(1, false) && !self.truthy()) ? p.get(0, cell::literal("")) : self;
}

cell trim_filter(machine& m, const cell& self, const arguments& args) {
  const parameters p("trim", args, {"chars"});
  const std::string text = to_string(m, self);
  return m.text(strip(m, text, p.has_value(0) ? std::optional(p.string(0)) : std::nullopt, true, true));
}

template <std::string (*map)(machine&, std::string_view)>
cell mapped_filter(machine& m, const cell& self, const arguments& args) {
  const parameters none("a case filter", args, {});
  return m.text(map(m, to_string(m, self)));
}

// Jinja2's title: words begin after white space, '-' and opening brackets.
std::string title(machine& m, std::string_view text) {
  m.charge_bytes(text.size());
  std::string out;
  bool start = true;
  for (std::size_t at = 0; at < text.size();) {
    const char32_t c = unicode::decode(text, at);
    start ? unicode::append_upper(out, c) : unicode::append_lower(out, c);
    start = unicode::is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
  }
  return out;
}

cell string_filter(machine& m, const cell& self, const arguments& args) {
  const parameters none("string", args, {});
  return self.is_text() ? self : m.text(to_string(m, self));
}

cell safe_filter(machine& m, const cell& self, const arguments& args) { return string_filter(m, self, args); }

cell escape_filter(machine& m, const cell& self, const arguments& args) {
  const parameters none("escape", args, {});
  const std::string text = to_string(m, self);
  std::string out;
  for (char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&#34;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return m.text(std::move(out));
}

cell replace_filter(machine& m, const cell& self, const arguments& args) {
  const parameters p("replace", args, {"old", "new", "count"}, 2);
  const std::int64_t limit = p.has_value(2) ? p.integer(2, -1) : -1;
  return m.text(replace_all(m, to_string(m, self), to_string(m, p.at(0)), to_string(m, p.at(1)), limit));
}

// `base` in front of every line but the first; empty lines only with `blank`.
cell indent_filter(machine& m, const cell& self, const arguments& args) {
  const parameters p("indent", args, {"width", "first", "blank"});
  if (self.is_undefined()) fail_undefined(self);
  if (!self.is_text()) throw render_error("indent needs a string, not " + std::string(self.type_name()));
  const bool text_width = p.given(0) && p.at(0).is_text();
  const std::string base =
      text_width ? p.string(0) : pad(m, "", static_cast<std::size_t>(std::max<std::int64_t>(p.integer(0, 4), 0)), 0, " ");
  const std::string text = self.bytes() + "\n";
  m.charge_bytes(text.size());
  std::string out;
  bool first = true;
  for (std::string_view line : split_lines(m, text)) {
    if (!first) out += '\n';
    if (first ? p.truth(1, false) : !line.empty() || p.truth(2, false)) m.append(out, base);
    m.append(out, line);
    first = false;
  }
  return m.text(std::move(out));
}

cell truncate_filter(machine& m, const cell& self, const arguments& args) {
  const parameters p("truncate", args, {"length", "killwords", "end", "leeway"});
  const std::string text = to_string(m, self);
  const std::string end = p.string(2, "...");
  const auto end_length = static_cast<std::int64_t>(unicode::length(end));
  const std::int64_t length = p.integer(0, 255), leeway = p.has_value(3) ? p.integer(3, 5) : 5;
  if (length < end_length || leeway < 0) throw render_error("truncate: length or leeway is too small");
  if (static_cast<std::int64_t>(unicode::length(text)) <= length || static_cast<std::int64_t>(unicode::length(text)) - length <= leeway)
    return m.text(text);
  std::string_view kept = std::string_view(text).substr(0, unicode::offset(text, static_cast<std::size_t>(length - end_length)));
  if (!p.truth(1, false)) {
    if (const std::size_t blank = find_last(m, kept, " "); blank != std::string_view::npos) kept = kept.substr(0, blank);
  }
  return m.text(std::string(kept) + end);
}

cell wordcount_filter(machine& m, const cell& self, const arguments& args) {
  const parameters none("wordcount", args, {});
  const std::string text = to_string(m, self);
  std::int64_t words = 0;
  bool inside = false;
  for (std::size_t at = 0; at < text.size();) {
    const char32_t c = unicode::decode(text, at);
    const bool word = c == '_' || unicode::is_alphabetic(c) || unicode::is_numeric(c) || unicode::is_digit(c);
    words += word && !inside ? 1 : 0;
    inside = word;
  }
  return words;
}

cell center_filter(machine& m, const cell& self, const arguments& args) {
  const parameters p("center", args, {"width"});
  const std::string text = to_string(m, self);
  const std::int64_t room = p.integer(0, 80) - static_cast<std::int64_t>(unicode::length(text));
  if (room <= 0) return m.text(text);
  const auto left = static_cast<std::size_t>(room / 2 + (room & p.integer(0, 80) & 1));
  return m.text(pad(m, text, left, static_cast<std::size_t>(room) - left, " "));
}

cell format_filter(machine& m, const cell& self, const arguments& args) {
  if (!args.named.empty() && !args.positional.empty()) throw render_error("format takes positional or named arguments, not both");
  if (args.named.empty()) return m.text(format_percent(m, to_string(m, self), make_tuple(args.positional)));
  dict named;
  for (const auto& [name, item] : args.named) named.set(m.text(name), item);
  return m.text(format_percent(m, to_string(m, self), make_dict(std::move(named))));
}

std::optional<cell> truncated(double value) {
  if (!std::isfinite(value)) return std::nullopt;
  if (!(std::fabs(value) < 9.2e18)) throw render_error("an integer is out of range");
  return cell(static_cast<std::int64_t>(value));
}

cell int_filter(machine& m, const cell& self, const arguments& args) {
  const parameters p("int", args, {"default", "base"});
  if (self.is_undefined()) fail_undefined(self);
  if (self.is_integral()) return self.as_int();
  if (self.is_double()) return truncated(self.as_double()).value_or(p.get(0, 0));
  if (!self.is_text()) return p.get(0, 0);
  m.charge_bytes(self.bytes().size());
  const std::int64_t base = p.integer(1, 10);
  const bool known = base == 0 || (base >= 2 && base <= 36);
  if (auto value = known ? parse_int(self.bytes(), static_cast<int>(base)) : std::nullopt) return *value;
  const auto value = parse_float(self.bytes());
  return (value ? truncated(*value) : std::nullopt).value_or(p.get(0, 0));
}

cell float_filter(machine& m, const cell& self, const arguments& args) {
  const parameters p("float", args, {"default"});
  if (self.is_undefined()) fail_undefined(self);
  if (self.is_number()) return self.as_double();
  if (!self.is_text()) return p.get(0, 0.0);
  m.charge_bytes(self.bytes().size());
  if (auto value = parse_float(self.bytes())) return *value;
  return p.get(0, 0.0);
}

cell abs_filter(machine&, const cell& self, const arguments& args) {
  const parameters none("abs", args, {});
  if (self.is_undefined()) fail_undefined(self);
  if (self.is_double()) return std::fabs(self.as_double());
  if (!self.is_integral()) throw render_error("abs needs a number, not " + std::string(self.type_name()));
  return self.as_int() < 0 ? negative(self) : cell(self.as_int());
}

// round(): to the nearest, ties to even, of the number's exact decimal value.
double rounded(double value, std::int64_t precision) {
  if (!std::isfinite(value) || precision > 323) return value;
  if (precision < -308) return std::copysign(0.0, value);
  if (precision < 0) {
    const double scale = std::pow(10.0, static_cast<double>(-precision));
    return std::nearbyint(value / scale) * scale;
  }
  char buffer[700];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed, static_cast<int>(precision)).ptr;
  double out = 0;
  std::from_chars(buffer, end, out);
  return out;
}

cell round_filter(machine&, const cell& self, const arguments& args) {
  const parameters p("round", args, {"precision", "method"});
  const std::string method = p.string(1, "common");
  const std::int64_t precision = p.integer(0, 0);
  if (self.is_undefined()) fail_undefined(self);
  if (!self.is_number()) throw render_error("round needs a number, not " + std::string(self.type_name()));
  if (method == "common") {
    if (self.is_double()) return rounded(self.as_double(), precision);
    if (precision >= 0) return self.as_int();
    return truncated(rounded(self.as_double(), precision)).value_or(0);
  }
  if (method != "ceil" && method != "floor") throw render_error("round: method must be common, ceil or floor");
  if (precision > 300 || precision < -300) throw render_error("round: the precision is out of range");
  const double scale = std::pow(10.0, static_cast<double>(precision));
  return (method == "ceil" ? std::ceil(self.as_double() * scale) : std::floor(self.as_double() * scale)) / scale;
}

cell tojson_filter(machine& m, const cell& self, const arguments& args) {
  const parameters p("tojson", args, {"ensure_ascii", "indent", "separators", "sort_keys"});
  json_style style;
  style.ascii = p.truth(0, false);
  style.sorted = p.truth(3, false);
  if (p.has_value(1)) {
    if (p.at(1).is_text()) {
      style.indent = p.string(1);
    } else {
      style.indent = pad(m, "", static_cast<std::size_t>(std::max<std::int64_t>(p.integer(1, 0), 0)), 0, " ");
    }
    style.item_separator = ",";
  }
  if (p.has_value(2)) {
    const std::vector<cell> pair = items_of(m, p.at(2));
    if (pair.size() != 2 || !pair[0].is_text() || !pair[1].is_text()) throw render_error("tojson: separators must be two strings");
    style.item_separator = pair[0].bytes();
    style.key_separator = pair[1].bytes();
  }
  return m.text(to_json(m, self, style));
}

cell attr_filter(machine& m, const cell& self, const arguments& args) {
  const parameters p("attr", args, {"name"}, 1);
  if (self.is_undefined()) fail_undefined(self);
  if (self.is_dict() && !find_method(self, p.string(0))) return make_undefined("'dict object' has no attribute '" + p.string(0) + "'");
  return get_attribute(m, self, p.string(0));
}

constexpr std::array<builtin, 24> filters = {{
    {"abs", abs_filter},
    {"attr", attr_filter},
    {"capitalize", mapped_filter<capitalize>},
    {"center", center_filter},
    {"d", default_filter},
    {"default", default_filter},
    {"e", escape_filter},
    {"escape", escape_filter},
    {"float", float_filter},
    {"forceescape", escape_filter},
    {"format", format_filter},
    {"indent", indent_filter},
    {"int", int_filter},
    {"lower", mapped_filter<lower>},
    {"replace", replace_filter},
    {"round", round_filter},
    {"safe", safe_filter},
    {"string", string_filter},
    {"title", mapped_filter<title>},
    {"tojson", tojson_filter},
    {"trim", trim_filter},
    {"truncate", truncate_filter},
    {"upper", mapped_filter<upper>},
    {"wordcount", wordcount_filter},
}};

} // namespace

std::span<const builtin> value_filters() { return filters; }

} // namespace troupe::jinja
