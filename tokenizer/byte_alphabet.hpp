// GPT-2's reversible mapping of bytes to printable characters: bytes that print as themselves in Latin-1 stay, the other 68 become
// U+0100.. in ascending order (openai/gpt-2, src/encoder.py, bytes_to_unicode).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace troupe::byte_alphabet {

std::string encode(std::string_view bytes);
// None when a character of `text` (UTF-8) is not of the alphabet.
std::optional<std::string> decode(std::string_view text);

} // namespace troupe::byte_alphabet
