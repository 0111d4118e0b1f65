// Values of the flags that say what load a bench makes.
#pragma once

#include <string>

#include "apps/bench/workload.hpp"

namespace troupe::apps {

// Of --request-rate: requests a second, from 1e-6 to 1e9, or infinity for "inf". Throws CLI::ValidationError.
double parse_rate(const std::string& text);

// "128" or "64:256". Throws CLI::ValidationError naming `flag`.
bench::length_range parse_lengths(const char* flag, const std::string& text);

} // namespace troupe::apps
