#include "telemetry/statistic_checks.hpp"

#include <prometheus/counter.h>

#include <cstdio>
#include <limits>
#include <string>
#include <utility>

namespace troupe::telemetry {
namespace {

constexpr std::array<std::string_view, static_cast<std::size_t>(statistic::count)> statistic_names = {
    "prompt tokens", "generation tokens", "cached tokens", "preemptions", "drafts",      "step sequences",  "step tokens",    "running",
    "waiting",       "KV blocks",         "duration",      "outcome",     "HTTP status", "replica or rank", "moved sequences"};

void log_to_stderr(std::string_view line) { std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data()); }

} // namespace

statistic_checks::statistic_checks(prometheus::Registry& registry, metrics::log_function log)
    : invalid_(add_counter(registry, "troupe_invalid_statistics_total", "Impossible statistics that were clamped (a bug).")),
      log_(log ? std::move(log) : log_to_stderr) {}

void statistic_checks::bad(statistic which, std::string_view detail) noexcept {
  invalid_.Increment();
  const auto index = static_cast<std::size_t>(which);
  if (logged_[index].exchange(true)) return;
  try {
    log_("telemetry: bad statistic for " + std::string(statistic_names[index]) + ": " + std::string(detail) +
         "; clamped, and further ones of this kind are only counted");
  } catch (...) { // a log that fails must not take the engine down
  }
}

std::int64_t statistic_checks::checked(statistic which, std::int64_t value) noexcept {
  if (value >= 0) return value;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%lld", static_cast<long long>(value));
  bad(which, text.data());
  return 0;
}

double statistic_checks::seconds(std::uint64_t ns) noexcept {
  if (ns > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    bad(statistic::duration, "end before begin");
    return 0;
  }
  return static_cast<double>(ns) * 1e-9;
}

} // namespace troupe::telemetry
