// The process_* series, which are read anew at each scrape. Part of metrics' implementation.
#pragma once

#include <vector>

namespace prometheus {
struct MetricFamily;
} // namespace prometheus

namespace troupe::telemetry {

// What the system does not tell is left out.
void append_process_series(std::vector<prometheus::MetricFamily>& families);

} // namespace troupe::telemetry
