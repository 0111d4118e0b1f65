// Sends a planned load over HTTP/1.1 and records what came back and when.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "apps/bench/statistics.hpp"
#include "apps/bench/url.hpp"
#include "apps/bench/workload.hpp"
#include "core/error.hpp"

namespace troupe::bench {

struct connection_options {
  server_url url;
  std::string api_key;                        // empty: none is sent
  std::chrono::milliseconds timeout{600'000}; // of one request, from connecting to its last byte
};

// Body of a GET answered with 200; otherwise an error with one line.
result<std::string> get(const connection_options& connection, std::string_view path);

struct progress {
  std::size_t finished = 0; // failed ones included
  std::size_t failed = 0;
  std::size_t running = 0;
  std::int64_t outputs = 0; // events with output so far
  double elapsed = 0;       // seconds
};

struct load_options {
  connection_options connection;
  std::vector<double> due;                                               // one per request, ascending, seconds
  std::size_t max_concurrency = std::numeric_limits<std::size_t>::max(); // at least 1; a request due beyond it waits
  std::function<void(const progress&)> on_progress;                      // about ten times a second; may be empty
};

struct load_result {
  std::vector<request_record> records; // of requests that ended, in the order of sending
  bool interrupted = false;            // SIGINT: the requests then under way are left out
};

// Connections are kept and used again. Fails as a whole only when the host's name cannot be resolved.
result<load_result> run_load(const load_options& options, const std::vector<planned_request>& requests);

} // namespace troupe::bench
