// A load run's figures as a text table, as JSON, and its progress as one line. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "apps/bench/load.hpp"
#include "apps/bench/statistics.hpp"
#include "core/value.hpp"

namespace troupe::bench {

std::string text_report(const totals& figures, const objectives& wanted);

// Object with "requests", "throughput", "latency_ms", "failures" and, with objectives, "goodput".
value json_report(const totals& figures, const objectives& wanted);

// Requests that went well as the CSV that `troupe simulate --trace` reads: when each was sent and what came of it.
std::string trace_csv(const std::vector<request_record>& records);

// At most `width` columns, no newline.
std::string progress_line(const progress& now, std::size_t wanted, std::size_t width);

} // namespace troupe::bench
