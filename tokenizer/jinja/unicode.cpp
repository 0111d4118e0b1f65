#include "tokenizer/jinja/unicode.hpp"

#include <algorithm>

#include "tokenizer/jinja/unicode_tables.hpp"
#include "tokenizer/utf8.hpp"

namespace troupe::jinja::unicode {

namespace {

bool contains(std::span<const range> table, char32_t c) {
  auto it = std::upper_bound(table.begin(), table.end(), c, [](char32_t x, const range& r) { return x < r.first; });
  return it != table.begin() && c <= std::prev(it)->last;
}

char32_t mapped(std::span<const case_run> table, char32_t c) {
  auto it = std::upper_bound(table.begin(), table.end(), c, [](char32_t x, const case_run& r) { return x < r.first; });
  if (it == table.begin()) return c;
  const case_run& run = *--it;
  if (c > run.last || (c - run.first) % run.step != 0) return c;
  return static_cast<char32_t>(static_cast<std::int64_t>(c) + run.delta);
}

void append_mapped(std::string& out, std::span<const case_run> table, std::span<const expansion> longer, char32_t c) {
  auto it = std::lower_bound(longer.begin(), longer.end(), c, [](const expansion& e, char32_t x) { return e.from < x; });
  if (it == longer.end() || it->from != c) return utf8::append(out, mapped(table, c));
  for (char32_t part : it->to) {
    if (part != 0) utf8::append(out, part);
  }
}

bool is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U; }

} // namespace

char32_t decode(std::string_view text, std::size_t& position) {
  const utf8::character c = utf8::read(text, position);
  position += c.size;
  return c.code;
}

char32_t decode_before(std::string_view text, std::size_t& position) {
  position = utf8::previous(text, position);
  std::size_t at = position;
  return decode(text, at);
}

std::size_t length(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) { return !is_continuation(c); }));
}

std::size_t offset(std::string_view text, std::size_t index) {
  std::size_t at = 0;
  for (; at < text.size(); ++at) {
    if (!is_continuation(text[at]) && index-- == 0) break;
  }
  return at;
}

bool is_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x1F);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

bool is_printable(char32_t c) { return !contains(unprintable, c); }
bool is_alphabetic(char32_t c) { return contains(alphabetic, c); }
bool is_decimal(char32_t c) { return contains(decimals, c); }
bool is_digit(char32_t c) { return contains(digits, c); }
bool is_numeric(char32_t c) { return contains(numerics, c); }
bool is_upper(char32_t c) { return mapped(to_lower, c) != c && mapped(to_title, c) == c; }
bool is_lower(char32_t c) {
  if (mapped(to_upper, c) != c) return mapped(to_lower, c) == c;
  return std::any_of(to_upper_long.begin(), to_upper_long.end(), [c](const expansion& e) { return e.from == c; });
}
bool is_cased(char32_t c) { return is_upper(c) || is_lower(c) || mapped(to_upper, c) != c || mapped(to_lower, c) != c; }

void append_upper(std::string& out, char32_t c) { append_mapped(out, to_upper, to_upper_long, c); }
void append_lower(std::string& out, char32_t c) { append_mapped(out, to_lower, to_lower_long, c); }
void append_title(std::string& out, char32_t c) { append_mapped(out, to_title, to_title_long, c); }

std::string_view trim_left(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t start = at;
    if (!is_space(decode(text, at))) return text.substr(start);
  }
  return {};
}

std::string_view trim_right(std::string_view text) {
  for (std::size_t at = text.size(); at > 0;) {
    const std::size_t end = at;
    if (!is_space(decode_before(text, at))) return text.substr(0, end);
  }
  return {};
}

} // namespace troupe::jinja::unicode
