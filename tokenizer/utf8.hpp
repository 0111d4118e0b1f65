// UTF-8 by hand: whole characters, and what to do with bytes that are none.
// Ill-formed input becomes one U+FFFD per maximal subpart (Unicode 15, section 3.9, table 3-7), as in WHATWG decoders and Python's
// errors="replace".
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace troupe::utf8 {

inline constexpr std::string_view replacement = "\xEF\xBF\xBD"; // U+FFFD

enum class status : std::uint8_t { whole, invalid, incomplete };

struct character {
  char32_t code = 0;      // U+FFFD unless whole
  std::uint32_t size = 0; // bytes it takes: a whole character, or a maximal subpart
  status state = status::invalid;
};

// The character at `at` (at < text.size()). `incomplete`: the text ends inside what may still become a character.
character read(std::string_view text, std::size_t at);

// As read(), for text that is known to be UTF-8.
inline character read_valid(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[at + i])); };
  const char32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1, status::whole};
  if (lead < 0xE0) return {(lead & 0x1F) << 6 | (byte(1) & 0x3F), 2, status::whole};
  if (lead < 0xF0) return {(lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3, status::whole};
  return {(lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F), 4, status::whole};
}

// Where the character that ends at `end` begins; `text` is UTF-8 and end > 0.
inline std::size_t previous(std::string_view text, std::size_t end) {
  do --end;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80);
  return end;
}

bool is_valid(std::string_view text);
// `text`, with U+FFFD for what is ill-formed (an unfinished character at the end too).
std::string repair(std::string_view text);
void append(std::string& out, char32_t code);
// Code points in UTF-8 text.
std::size_t length(std::string_view text);

} // namespace troupe::utf8
