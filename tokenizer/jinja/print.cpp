// How values look as text: str(), repr() and json.dumps().
#include <algorithm>
#include <charconv>
#include <cmath>

#include "tokenizer/jinja/machine.hpp"
#include "tokenizer/jinja/unicode.hpp"
#include "tokenizer/plain_marker.hpp"
#include "tokenizer/utf8.hpp"

namespace troupe::jinja {

namespace {

constexpr std::size_t kMaxReprDepth = 300; // more than data can nest: only namespaces that hold each other get there

void append_hex(std::string& out, std::string_view prefix, char32_t value, int digits) {
  out += prefix;
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) out += "0123456789abcdef"[value >> static_cast<unsigned>(shift) & 0xFU];
}

std::string text_repr(machine& m, const std::string& bytes) {
  const char quote = bytes.find('\'') != std::string::npos && bytes.find('"') == std::string::npos ? '"' : '\'';
  m.charge_bytes(bytes.size());
  std::string out(1, quote);
  for (std::size_t at = 0; at < bytes.size();) {
    const char32_t c = unicode::decode(bytes, at);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (unicode::is_printable(c) || c == plain_marker_code) {
      utf8::append(out, c);
    } else if (c < 0x100) {
      append_hex(out, "\\x", c, 2);
    } else {
      c < 0x10000 ? append_hex(out, "\\u", c, 4) : append_hex(out, "\\U", c, 8);
    }
  }
  out += quote;
  m.check_size(out.size());
  return out;
}

std::string dict_repr(machine& m, const dict& source, std::size_t depth) {
  std::string out = "{";
  for (const auto& [key, item] : source.entries()) {
    if (out.size() > 1) out += ", ";
    m.append(out, repr(m, key, depth + 1));
    out += ": ";
    m.append(out, repr(m, item, depth + 1));
  }
  return out + "}";
}

std::string sequence_repr(machine& m, const sequence& source, std::string_view type, std::size_t depth) {
  if (source.kind == sequence_kind::iterator) return "<generator object>";
  if (source.kind == sequence_kind::range) {
    return "range(" + std::to_string(source.start) + ", " + std::to_string(source.stop) +
           (source.step == 1 ? "" : ", " + std::to_string(source.step)) + ")";
  }
  const bool tuple = source.kind == sequence_kind::tuple;
  std::string items;
  for (const cell& item : source.items) {
    if (!items.empty()) items += ", ";
    m.append(items, repr(m, item, depth + 1));
  }
  if (tuple) return "(" + items + (source.items.size() == 1 ? ",)" : ")");
  items = "[" + items + "]";
  return source.kind == sequence_kind::list ? items : std::string(type) + "(" + items + ")";
}

class json_writer {
 public:
  json_writer(machine& m, const json_style& style) : machine_(m), style_(style) {}

  std::string run(const cell& item) {
    write(item, 0);
    return std::move(out_);
  }

 private:
  void write(const cell& item, std::size_t depth) {
    machine_.charge();
    machine_.check_size(out_.size());
    if (item.is_none()) {
      out_ += "null";
    } else if (item.is_bool()) {
      out_ += item.as_bool() ? "true" : "false";
    } else if (item.is_int()) {
      out_ += std::to_string(item.as_int());
    } else if (item.is_double()) {
      out_ += number(item.as_double());
    } else if (item.is_text()) {
      string(item.bytes());
    } else if (item.is_sequence(sequence_kind::list) || item.is_sequence(sequence_kind::tuple)) {
      const auto& items = item.as_sequence().items;
      container('[', ']', items.size(), depth, [&](std::size_t i) { write(items[i], depth + 1); });
    } else if (item.is_dict()) {
      object(item.as_dict(), depth);
    } else {
      throw render_error("object of type " + std::string(item.type_name()) + " is not JSON serializable");
    }
  }

  void object(const dict& source, std::size_t depth) {
    std::vector<dict::entry> sorted;
    if (style_.sorted) {
      machine_.charge(source.size());
      sorted = source.entries();
      std::stable_sort(sorted.begin(), sorted.end(), [&](const auto& a, const auto& b) { return less(machine_, a.first, b.first); });
    }
    const auto& entries = style_.sorted ? sorted : source.entries();
    container('{', '}', entries.size(), depth, [&](std::size_t i) {
      key(entries[i].first);
      out_ += style_.key_separator;
      write(entries[i].second, depth + 1);
    });
  }

  template <class Write>
  void container(char open, char close, std::size_t count, std::size_t depth, const Write& write_item) {
    out_ += open;
    for (std::size_t i = 0; i < count; ++i) {
      if (i > 0) out_ += style_.item_separator;
      line(depth + 1);
      write_item(i);
    }
    if (count > 0) line(depth);
    out_ += close;
  }

  void line(std::size_t depth) {
    if (!style_.indent) return;
    out_ += '\n';
    for (std::size_t i = 0; i < depth; ++i) machine_.append(out_, *style_.indent);
  }

  void key(const cell& item) {
    if (item.is_text()) return string(item.bytes());
    if (!item.is_none() && !item.is_number())
      throw render_error("keys of JSON objects must be strings, not " + std::string(item.type_name()));
    out_ += '"';
    write(item, 0);
    out_ += '"';
  }

  static std::string number(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
    return float_repr(value);
  }

  void string(const std::string& bytes) {
    machine_.charge_bytes(bytes.size());
    out_ += '"';
    for (std::size_t at = 0; at < bytes.size();) {
      const char32_t c = unicode::decode(bytes, at);
      static constexpr std::string_view from = "\"\\\n\r\t\b\f", to = "\"\\nrtbf";
      const auto simple = c < 0x80 ? from.find(static_cast<char>(c)) : std::string_view::npos;
      if (simple != std::string_view::npos) {
        out_ += '\\';
        out_ += to[simple];
      } else if (c < 0x20 || (style_.ascii && c >= 0x7F && c < 0x10000 && c != plain_marker_code)) {
        append_hex(out_, "\\u", c, 4);
      } else if (style_.ascii && c >= 0x10000) {
        append_hex(out_, "\\u", 0xD800 + ((c - 0x10000) >> 10U), 4);
        append_hex(out_, "\\u", 0xDC00 + ((c - 0x10000) & 0x3FFU), 4);
      } else {
        utf8::append(out_, c);
      }
    }
    out_ += '"';
    machine_.check_size(out_.size());
  }

  machine& machine_;
  const json_style& style_;
  std::string out_;
};

} // namespace

// Python's repr: the shortest digits that read back as the same number; an exponent below 1e-4 and from 1e16.
std::string float_repr(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, std::fabs(number), std::chars_format::scientific).ptr;
  const std::string_view shortest(buffer, static_cast<std::size_t>(end - buffer));
  const std::size_t mark = shortest.find('e');
  std::string digits(shortest.substr(0, mark));
  std::erase(digits, '.');
  int exponent = 0;
  const std::size_t skip = shortest[mark + 1] == '+' ? 2 : 1;
  std::from_chars(buffer + mark + skip, end, exponent);

  std::string out = std::signbit(number) ? "-" : "";
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (digits.size() > 1) out += "." + digits.substr(1);
    const std::string power = std::to_string(std::abs(exponent));
    return out + (exponent < 0 ? "e-" : "e+") + (power.size() < 2 ? "0" : "") + power;
  }
  if (exponent < 0) return out + "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  const auto whole = static_cast<std::size_t>(exponent) + 1;
  if (digits.size() <= whole) return out + digits + std::string(whole - digits.size(), '0') + ".0";
  return out + digits.substr(0, whole) + "." + digits.substr(whole);
}

std::string repr(machine& m, const cell& item, std::size_t depth) {
  m.charge();
  if (depth > kMaxReprDepth) throw render_error("data that contains itself cannot be printed");
  if (item.is_none()) return "None";
  if (item.is_undefined()) return "Undefined";
  if (item.is_bool()) return item.as_bool() ? "True" : "False";
  if (item.is_int()) return std::to_string(item.as_int());
  if (item.is_double()) return float_repr(item.as_double());
  if (item.is_text()) return text_repr(m, item.bytes());
  if (item.is_dict()) return dict_repr(m, item.as_dict(), depth);
  if (item.is_sequence()) return sequence_repr(m, item.as_sequence(), item.type_name(), depth);
  if (item.is_object()) return item.as_object()->repr(m, depth + 1);
  return "<built-in method " + std::string(item.as_method().function->name) + ">";
}

std::string to_string(machine& m, const cell& item) {
  if (item.is_undefined()) return {};
  if (item.is_text()) {
    m.charge_bytes(item.bytes().size());
    return item.bytes();
  }
  return repr(m, item);
}

std::string to_json(machine& m, const cell& item, const json_style& style) { return json_writer(m, style).run(item); }

} // namespace troupe::jinja
