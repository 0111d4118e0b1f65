#include "transport/http/exchange.hpp"

#include <array>
#include <cstdio>
#include <utility>

#include "transport/http/http_head.hpp"

namespace troupe::http {

namespace {

head_fields fields_of(const exchange& request) { return {request.http_1_0, !request.keep_alive, request.request_id}; }

} // namespace

std::string make_text_id(std::uint64_t prefix, std::uint64_t number) {
  std::array<char, 40> id;
  std::snprintf(id.data(), id.size(), "%016llx%08llx", static_cast<unsigned long long>(prefix), static_cast<unsigned long long>(number));
  return id.data();
}

request_head read_head(const request_reader& reader, exchange& request) {
  request_head head;
  head.method = reader.method();
  head.target = reader.target();
  head.authorization = reader.header("Authorization");
  head.content_type = reader.header("Content-Type");
  head.content_encoding = reader.header("Content-Encoding");
  head.expect = reader.header("Expect");
  head.content_types = reader.header_count("Content-Type");
  head.from_page = reader.header_count("Origin") != 0;
  head.lacks_host = !reader.is_http_1_0() && reader.header_count("Host") != 1;
  request.where = find_route(head.method, head.target);
  request.keep_alive = reader.keep_alive();
  request.http_1_0 = reader.is_http_1_0();
  request.head_only = head.method == "HEAD";
  if (const auto own = reader.header("x-request-id"); is_echoable_id(own)) request.request_id = own;
  return head;
}

std::string whole_bytes(exchange& request, const reply& whole, bool last_request) {
  if (whole.close || last_request) request.keep_alive = false;
  request.status = whole.status;
  request.answer_begun = request.answer_written = true;
  std::string bytes = whole_head(whole, fields_of(request));
  if (!request.head_only) bytes += whole.body;
  return bytes;
}

std::string stream_bytes(exchange& request, const reply_channel::output& out, bool last_request) {
  std::string bytes;
  if (!std::exchange(request.answer_begun, true)) {
    if (request.http_1_0 || last_request) request.keep_alive = false;
    request.status = 200;
    bytes = stream_head(fields_of(request));
  }
  if (!out.events.empty()) bytes += request.http_1_0 ? out.events : chunk_of(out.events);
  if (out.ended && !request.http_1_0) bytes += last_chunk;
  if (out.failed) request.keep_alive = false;
  request.answer_written = out.ended;
  request.events_in_flight = out.events.size();
  return bytes;
}

} // namespace troupe::http
