#include "telemetry/step_gaps.hpp"

#include <algorithm>
#include <utility>

namespace troupe::telemetry {

std::optional<time_span> step_gaps::observe(std::uint64_t epoch, const time_span& compute, bool decodes) {
  const auto before = std::exchange(last_end_, std::max(compute.end_ns, last_end_.value_or(0)));
  if (std::exchange(epoch_, epoch) != epoch) {
    last_end_ = compute.end_ns;
    return std::nullopt;
  }
  if (!before || !decodes || compute.end_ns < compute.begin_ns) return std::nullopt;
  const std::uint64_t begin = std::max(compute.begin_ns, *before); // clocks of GPU and host agree to a few microseconds
  ++summary_.steps;
  summary_.busy_ns += std::max(compute.end_ns, begin) - begin;
  summary_.idle_ns += begin - *before;
  if (begin == *before) return std::nullopt;
  return time_span{*before, begin};
}

} // namespace troupe::telemetry
