#include "transport/http/http_head.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>

namespace troupe::http {

namespace {

constexpr std::size_t kLongestId = 128;

std::string_view reason_of(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Unknown";
  }
}

// "Date: Sun, 06 Nov 1994 08:49:37 GMT" (RFC 9110, 5.6.7), whatever the locale.
void append_date(std::string& out) {
  static constexpr std::array<const char*, 7> days = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  static constexpr std::array<const char*, 12> months = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                                         "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const std::time_t now = std::time(nullptr);
  std::tm t{};
  if (gmtime_r(&now, &t) == nullptr) return;
  std::array<char, 64> line;
  const int size = std::snprintf(line.data(), line.size(), "Date: %s, %02d %s %04d %02d:%02d:%02d GMT\r\n", days[t.tm_wday % 7], t.tm_mday,
                                 months[t.tm_mon % 12], t.tm_year + 1900, t.tm_hour, t.tm_min, t.tm_sec);
  if (size > 0) out.append(line.data(), std::min<std::size_t>(static_cast<std::size_t>(size), line.size() - 1));
}

void begin_head(std::string& out, int status, const head_fields& fields) {
  out += "HTTP/1.1 " + std::to_string(status) + ' ';
  out += reason_of(status);
  out += "\r\nServer: troupe\r\n";
  append_date(out);
  if (!fields.request_id.empty()) {
    out += "x-request-id: ";
    out += fields.request_id;
    out += "\r\n";
  }
  if (fields.close) {
    out += "Connection: close\r\n";
  } else if (fields.http_1_0) {
    out += "Connection: keep-alive\r\n";
  }
}

} // namespace

std::string whole_head(const reply& whole, const head_fields& fields) {
  std::string out;
  begin_head(out, whole.status, fields);
  out += "Content-Type: ";
  out += whole.content_type;
  out += "\r\nContent-Length: " + std::to_string(whole.body.size()) + "\r\n";
  out += whole.header_lines;
  out += "\r\n";
  return out;
}

std::string stream_head(const head_fields& fields) {
  std::string out;
  begin_head(out, 200, fields);
  out += "Content-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\nX-Accel-Buffering: no\r\n";
  if (!fields.http_1_0) out += "Transfer-Encoding: chunked\r\n";
  out += "\r\n";
  return out;
}

std::string chunk_of(std::string_view events) {
  std::array<char, 24> size;
  const int digits = std::snprintf(size.data(), size.size(), "%zx\r\n", events.size());
  std::string out;
  out.reserve(events.size() + static_cast<std::size_t>(digits) + 2);
  out.append(size.data(), static_cast<std::size_t>(digits));
  out += events;
  out += "\r\n";
  return out;
}

bool is_echoable_id(std::string_view id) {
  return !id.empty() && id.size() <= kLongestId && std::all_of(id.begin(), id.end(), [](char c) { return c > 0x20 && c < 0x7f; });
}

} // namespace troupe::http
