// Appending JSON to a string: the parts of a response that are written once per token.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace troupe::http {

// `text` as a JSON string with its quotes; bytes that are not UTF-8 come out as U+FFFD.
void append_quoted(std::string& out, std::string_view text);
void append_integer(std::string& out, std::int64_t number);
// Shortest text that reads back as the same float. JSON knows no infinity: what is below -9999, or no number, is -9999.
void append_logprob(std::string& out, float logprob);
// [226, 130]: the bytes of a token.
void append_bytes(std::string& out, std::string_view bytes);

// Code points that begin in `text`, that is, bytes that are no UTF-8 continuation.
std::int64_t code_points(std::string_view text);
bool begins_inside_character(std::string_view text);

} // namespace troupe::http
