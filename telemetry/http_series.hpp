// The series of HTTP answers. Part of metrics' implementation.
#pragma once

#include <string_view>
#include <vector>

#include "telemetry/series.hpp"
#include "telemetry/statistic_checks.hpp"

namespace troupe::telemetry {

// Thread-safe.
class http_series {
 public:
  http_series(prometheus::Registry& registry, statistic_checks& checks);

  void answered(std::string_view route, int status) noexcept;
  void slow_reader_dropped() noexcept;

 private:
  statistic_checks& checks_;
  std::vector<std::vector<prometheus::Counter*>> requests_; // by route, then class of the status
  prometheus::Counter& slow_readers_;
};

} // namespace troupe::telemetry
