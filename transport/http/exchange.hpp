// One request on a connection and the bytes of its answer. Knows no sockets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "transport/http/api.hpp"
#include "transport/http/reply_channel.hpp"
#include "transport/http/request_reader.hpp"

namespace troupe::http {

struct exchange {
  route_match where;
  std::string text_id;    // for bodies
  std::string request_id; // for the x-request-id field: the client's own where that is fit
  std::shared_ptr<reply_channel> channel;
  std::optional<troupe::request_id> cancel_id;
  bool keep_alive = false;
  bool http_1_0 = false;
  bool head_only = false;
  bool counted = false;        // among the server's active requests
  bool answer_begun = false;   // the status line was handed to the write loop
  bool answer_written = false; // all of the answer was
  int status = 0;
  std::size_t events_in_flight = 0; // bytes of events in the write loop
};

// "16 hex digits of the process, 8 or more of the request"
std::string make_text_id(std::uint64_t prefix, std::uint64_t number);

// Notes what the header says about the answer and returns the part that routes judge. Its views live until the reader is reset.
request_head read_head(const request_reader& reader, exchange& request);

// The next bytes of the answer, noted as such in `request`. `last_request`: the connection ends behind it.
std::string whole_bytes(exchange& request, const reply& whole, bool last_request);
std::string stream_bytes(exchange& request, const reply_channel::output& out, bool last_request);

} // namespace troupe::http
