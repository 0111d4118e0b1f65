// When an open-loop load sends its requests. Pure: the same seed gives the same schedule.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace troupe::bench {

// Seconds from the start of the run, ascending, the first at 0. Gaps are gamma-distributed with mean 1 / rate and shape
// `burstiness`: 1 is a Poisson process, below 1 is burstier, above 1 more even. An infinite rate sends all at once.
// `rate` (requests a second) and `burstiness` are above 0.
std::vector<double> arrival_times(std::size_t count, double rate, double burstiness, std::uint64_t seed);

} // namespace troupe::bench
