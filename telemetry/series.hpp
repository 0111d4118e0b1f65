// How a series is added to the registry; its family comes with the first of them. Part of metrics' implementation.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace prometheus {
class Counter;
class Gauge;
class Histogram;
class Registry;
} // namespace prometheus

namespace troupe::telemetry {

using label_map = std::map<std::string, std::string>;

label_map with_label(label_map labels, const char* name, std::string value);

prometheus::Counter& add_counter(prometheus::Registry& registry, const char* name, const char* help, const label_map& labels = {});
prometheus::Gauge& add_gauge(prometheus::Registry& registry, const char* name, const char* help, const label_map& labels = {});
prometheus::Histogram& add_histogram(prometheus::Registry& registry, const char* name, const char* help, const label_map& labels,
                                     const std::vector<double>& bounds);

} // namespace troupe::telemetry
