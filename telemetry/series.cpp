#include "telemetry/series.hpp"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <utility>

namespace troupe::telemetry {

label_map with_label(label_map labels, const char* name, std::string value) {
  labels.emplace(name, std::move(value));
  return labels;
}

prometheus::Counter& add_counter(prometheus::Registry& registry, const char* name, const char* help, const label_map& labels) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry).Add(labels);
}

prometheus::Gauge& add_gauge(prometheus::Registry& registry, const char* name, const char* help, const label_map& labels) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry).Add(labels);
}

prometheus::Histogram& add_histogram(prometheus::Registry& registry, const char* name, const char* help, const label_map& labels,
                                     const std::vector<double>& bounds) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add(labels, bounds);
}

} // namespace troupe::telemetry
