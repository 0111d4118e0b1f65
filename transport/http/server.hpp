// The HTTP side: OpenAI's routes over Boost.Beast. Knows request_handler and token_sink, nothing of actors.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/service.hpp"

namespace troupe::http {

struct server_limits {
  std::size_t header_bytes = 16U << 10;
  std::size_t body_bytes = 8U << 20;
  std::size_t json_depth = 64;
  std::size_t connections = 1024;
  std::size_t unsent_bytes = 1U << 20;     // per stream: beyond it a slow reader is dropped
  std::chrono::seconds header_timeout{10}; // whole header, and idle keep-alive
  std::chrono::seconds body_timeout{60};
  std::chrono::seconds write_timeout{30}; // no progress of a write
  std::int32_t choices = 128;             // n * prompts
  std::int32_t stop_strings = 16;
  std::int32_t logit_biases = 1024;
  std::int32_t top_logprobs = 20;
};

struct server_options {
  std::string host = "127.0.0.1";
  std::uint16_t port = 8000; // 0: any free one
  int threads = 2;
  std::vector<std::string> api_keys; // empty: open to all
  std::string version;
  server_limits limits;
};

// What the server reports to telemetry; every member may be empty.
struct server_hooks {
  std::function<std::string()> metrics_text; // /metrics
  std::function<void(std::string_view route, int status)> request_done;
  std::function<void()> slow_reader_dropped;
};

class server {
 public:
  // Binds and listens at once; throws std::runtime_error naming host and port when that fails.
  server(server_options options, request_handler& handler, server_hooks hooks);
  ~server(); // stop(0)
  std::uint16_t port() const;
  // Accepts no new connection and no new request from here on (503); running ones go on.
  void drain();
  // Requests that have not ended.
  std::size_t active_requests() const;
  // Ends what is left with an error event, closes everything, joins the threads.
  void stop();

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

} // namespace troupe::http
