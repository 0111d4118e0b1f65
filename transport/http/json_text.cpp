#include "transport/http/json_text.hpp"

#include <algorithm>
#include <array>
#include <charconv>

#include "core/json.hpp"

namespace troupe::http {

namespace {

constexpr float kLowestLogprob = -9999.0F;

bool is_plain(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte >= 0x20 && byte < 0x7f && c != '"' && c != '\\';
}

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U; }

} // namespace

void append_quoted(std::string& out, std::string_view text) {
  if (!std::all_of(text.begin(), text.end(), is_plain)) {
    out += json::quote(text);
    return;
  }
  out += '"';
  out += text;
  out += '"';
}

void append_integer(std::string& out, std::int64_t number) {
  std::array<char, 24> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
  out.append(digits.data(), end);
}

void append_logprob(std::string& out, float logprob) {
  std::array<char, 32> digits;
  const float shown = logprob > kLowestLogprob ? std::min(logprob, 0.0F) : kLowestLogprob; // false for NaN
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), shown == 0.0F ? 0.0F : shown).ptr;
  out.append(digits.data(), end);
}

void append_bytes(std::string& out, std::string_view bytes) {
  out += '[';
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (i > 0) out += ',';
    append_integer(out, static_cast<unsigned char>(bytes[i]));
  }
  out += ']';
}

std::int64_t code_points(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return !is_continuation(c); });
}

bool begins_inside_character(std::string_view text) { return !text.empty() && is_continuation(text.front()); }

} // namespace troupe::http
