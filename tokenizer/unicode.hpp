// The Unicode properties and normal forms that tokenizers name (ICU behind it). Text is UTF-8.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace troupe::unicode {

bool is_white_space(char32_t code); // White_Space
bool is_word(char32_t code);        // UTS #18 \w: Alphabetic, marks, decimal digits, connectors, join controls
bool is_numeric(char32_t code);     // Nd, Nl, No
bool is_punctuation(char32_t code); // P*, or any ASCII punctuation
bool is_mark(char32_t code);        // Mn, Mc, Me

// Full, context-free lower case.
std::string to_lower(std::string_view text);

enum class form : std::uint8_t { nfc, nfd, nfkc, nfkd };
std::string normalize(std::string_view text, form target);

} // namespace troupe::unicode
