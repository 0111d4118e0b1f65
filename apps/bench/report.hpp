// A load run's figures as a text table, as JSON, and its progress as one line. Pure.
#pragma once

#include <cstddef>
#include <string>

#include "apps/bench/load.hpp"
#include "apps/bench/statistics.hpp"
#include "core/value.hpp"

namespace troupe::bench {

std::string text_report(const totals& figures, const objectives& wanted);

// Object with "requests", "throughput", "latency_ms", "failures" and, with objectives, "goodput".
value json_report(const totals& figures, const objectives& wanted);

// At most `width` columns, no newline.
std::string progress_line(const progress& now, std::size_t wanted, std::size_t width);

} // namespace troupe::bench
