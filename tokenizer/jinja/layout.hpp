// How one value is laid out in a field; what the two format languages share.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "tokenizer/jinja/machine.hpp"

namespace troupe::jinja {

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

// A number (bool, int or float) by the layout's type; 0: by its own.
std::string number_layout(machine& m, const layout& how, const cell& item);
std::string text_layout(machine& m, const layout& how, std::string_view text);

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

} // namespace troupe::jinja
