// Status lines and header fields of replies.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "transport/http/reply_channel.hpp"

namespace troupe::http {

struct head_fields {
  bool http_1_0 = false; // of the request; the reply's own version is always 1.1, but not its framing
  bool close = false;
  std::string_view request_id;
};

// The head of a whole reply, with the length of its body.
std::string whole_head(const reply& whole, const head_fields& fields);
// The head of an event stream: chunked, or up to the connection's end for HTTP/1.0.
std::string stream_head(const head_fields& fields);
// `events` as one chunk of a chunked body. Not for empty ones: an empty chunk ends the body.
std::string chunk_of(std::string_view events);
inline constexpr std::string_view last_chunk = "0\r\n\r\n";
inline constexpr std::string_view continue_head = "HTTP/1.1 100 Continue\r\n\r\n";

// True for what may be sent back as it is: short, printable ASCII with no spaces.
bool is_echoable_id(std::string_view id);

} // namespace troupe::http
