// UTF-8 text as Python's str sees it: code points, character classes, case.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace troupe::jinja::unicode {

// Decodes the character at `position` (< text.size()) and moves behind it.
char32_t decode(std::string_view text, std::size_t& position);
// Decodes the character of valid UTF-8 that ends at `position` (> 0) and moves before it.
char32_t decode_before(std::string_view text, std::size_t& position);
// Characters of valid UTF-8.
std::size_t length(std::string_view text);
// Byte offset of character `index` of valid UTF-8; text.size() when there are no more than `index` characters.
std::size_t offset(std::string_view text, std::size_t index);

bool is_space(char32_t character);     // str.isspace
bool is_printable(char32_t character); // str.isprintable
bool is_alphabetic(char32_t character);
bool is_decimal(char32_t character);
bool is_digit(char32_t character);
bool is_numeric(char32_t character);
bool is_upper(char32_t character);
bool is_lower(char32_t character);
bool is_cased(char32_t character);

void append_upper(std::string& out, char32_t character);
void append_lower(std::string& out, char32_t character);
void append_title(std::string& out, char32_t character);

// Without the white space at its ends (Python's str.strip with no argument).
std::string_view trim_left(std::string_view text);
std::string_view trim_right(std::string_view text);
inline std::string_view trim(std::string_view text) { return trim_left(trim_right(text)); }

} // namespace troupe::jinja::unicode
