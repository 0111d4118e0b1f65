#include "telemetry/http_series.hpp"

#include <prometheus/counter.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>

namespace troupe::telemetry {
namespace {

// The last one stands for every path that is not a route.
constexpr std::array<std::string_view, 12> routes = {"/v1/models", "/v1/models/{id}", "/v1/completions", "/v1/chat/completions",
                                                     "/tokenize",  "/detokenize",     "/version",        "/livez",
                                                     "/readyz",    "/health",         "/metrics",        "other"};
constexpr std::array<std::string_view, 5> status_classes = {"1xx", "2xx", "3xx", "4xx", "5xx"};

} // namespace

http_series::http_series(prometheus::Registry& registry, statistic_checks& checks)
    : checks_(checks),
      slow_readers_(add_counter(registry, "troupe_slow_readers_dropped_total", "Streams closed because the client read too slowly.")) {
  for (const std::string_view route : routes) {
    auto& classes = requests_.emplace_back();
    for (const std::string_view status : status_classes) {
      classes.push_back(&add_counter(registry, "troupe_http_requests_total", "HTTP requests answered, by route and status class.",
                                     {{"route", std::string(route)}, {"status", std::string(status)}}));
    }
  }
}

void http_series::answered(std::string_view route, int status) noexcept {
  const auto known = std::find(routes.begin(), routes.end() - 1, route);
  int status_class = status / 100;
  if (status < 100 || status > 599) {
    checks_.bad(statistic::http_status, "not within 100 to 599, counted as 5xx");
    status_class = 5;
  }
  requests_[static_cast<std::size_t>(known - routes.begin())][static_cast<std::size_t>(status_class - 1)]->Increment();
}

void http_series::slow_reader_dropped() noexcept { slow_readers_.Increment(); }

} // namespace troupe::telemetry
