#include "apps/load_flags.hpp"

#include <CLI/CLI.hpp>

#include <charconv>
#include <limits>
#include <system_error>

namespace troupe::apps {

double parse_rate(const std::string& text) {
  if (text == "inf") return std::numeric_limits<double>::infinity();
  double rate = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), rate);
  if (failure != std::errc{} || end != text.data() + text.size() || !(rate >= 1e-6 && rate <= 1e9)) {
    throw CLI::ValidationError("--request-rate", "a number of requests a second or 'inf' is wanted");
  }
  return rate;
}

bench::length_range parse_lengths(const char* flag, const std::string& text) {
  const auto range = bench::parse_range(text);
  if (!range) throw CLI::ValidationError(flag, "a length such as 128, or a range such as 64:256, is wanted");
  return *range;
}

} // namespace troupe::apps
