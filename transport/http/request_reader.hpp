// Bytes of a connection -> one HTTP/1.x request within limits. Beast parses; no sockets, no clocks.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "transport/http/server.hpp"

namespace troupe::http {

class request_reader {
 public:
  enum class progress {
    need_more,    // feed again, with the unconsumed bytes first
    header_ready, // reported once; go on feeding for the body
    complete,
    failed, // see failure_status() and failure_text(); nothing more can be read from this connection
  };
  struct step {
    progress state;
    std::size_t consumed; // bytes of the input that are done with
  };

  explicit request_reader(const server_limits& limits);
  ~request_reader();

  void reset(); // for the next request of the connection
  step feed(std::string_view bytes);
  bool started() const; // some byte of the request was seen
  int failure_status() const;
  std::string_view failure_text() const;

  // From header_ready on.
  std::string_view method() const;
  std::string_view target() const;
  bool is_http_1_0() const;
  bool keep_alive() const;
  // The field's value when it stands there once; empty otherwise.
  std::string_view header(std::string_view name) const;
  // How often the field stands there.
  std::size_t header_count(std::string_view name) const;
  // When complete.
  const std::string& body() const;

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

} // namespace troupe::http
