#include "tokenizer/utf8.hpp"

namespace troupe::utf8 {
namespace {

struct lead_rule {
  std::uint32_t size;      // bytes of the whole character, 0: no lead byte
  unsigned char low, high; // range of the second byte
};

lead_rule rule_of(unsigned char lead) {
  if (lead < 0xC2) return {0, 0, 0};
  if (lead < 0xE0) return {2, 0x80, 0xBF};
  if (lead == 0xE0) return {3, 0xA0, 0xBF};
  if (lead == 0xED) return {3, 0x80, 0x9F};
  if (lead < 0xF0) return {3, 0x80, 0xBF};
  if (lead == 0xF0) return {4, 0x90, 0xBF};
  if (lead < 0xF4) return {4, 0x80, 0xBF};
  if (lead == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

} // namespace

character read(std::string_view text, std::size_t at) {
  const auto lead = static_cast<unsigned char>(text[at]);
  if (lead < 0x80) return {lead, 1, status::whole};
  const lead_rule rule = rule_of(lead);
  if (rule.size == 0) return {0xFFFD, 1, status::invalid};
  for (std::uint32_t i = 1; i < rule.size; ++i) {
    if (at + i >= text.size()) return {0xFFFD, i, status::incomplete};
    const auto next = static_cast<unsigned char>(text[at + i]);
    const unsigned char low = i == 1 ? rule.low : 0x80;
    const unsigned char high = i == 1 ? rule.high : 0xBF;
    if (next < low || next > high) return {0xFFFD, i, status::invalid};
  }
  return read_valid(text, at);
}

bool is_valid(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const character next = read(text, at);
    if (next.state != status::whole) return false;
    at += next.size;
  }
  return true;
}

std::string repair(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  std::size_t at = 0;
  while (at < text.size()) {
    const character next = read(text, at);
    out += next.state == status::whole ? text.substr(at, next.size) : replacement;
    at += next.size;
  }
  return out;
}

void append(std::string& out, char32_t code) {
  const auto push = [&](char32_t byte) { out += static_cast<char>(static_cast<unsigned char>(byte)); };
  if (code < 0x80) return push(code);
  if (code < 0x800) {
    push(0xC0 | code >> 6);
  } else if (code < 0x10000) {
    push(0xE0 | code >> 12);
    push(0x80 | (code >> 6 & 0x3F));
  } else {
    push(0xF0 | code >> 18);
    push(0x80 | (code >> 12 & 0x3F));
    push(0x80 | (code >> 6 & 0x3F));
  }
  push(0x80 | (code & 0x3F));
}

std::size_t length(std::string_view text) {
  std::size_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return count;
}

} // namespace troupe::utf8
