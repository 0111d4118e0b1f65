#include "telemetry/process_series.hpp"

#include <prometheus/metric_family.h>

#include <optional>
#include <utility>

#include "telemetry/process_stats.hpp"

namespace troupe::telemetry {
namespace {

void append(std::vector<prometheus::MetricFamily>& families, const char* name, const char* help, prometheus::MetricType type,
            std::optional<double> value) {
  if (!value) return;
  prometheus::ClientMetric sample;
  (type == prometheus::MetricType::Counter ? sample.counter.value : sample.gauge.value) = *value;
  families.push_back({name, help, type, {std::move(sample)}});
}

} // namespace

void append_process_series(std::vector<prometheus::MetricFamily>& families) {
  using prometheus::MetricType;
  append(families, "process_open_fds", "Open file descriptors.", MetricType::Gauge, count_open_fds());
  append(families, "process_max_fds", "Most file descriptors that may be open (soft limit).", MetricType::Gauge, max_open_fds());
  const auto stats = read_process_stats();
  if (!stats) return;
  append(families, "process_cpu_seconds_total", "User and system CPU time.", MetricType::Counter, stats->cpu_seconds);
  append(families, "process_start_time_seconds", "Start of the process, Unix time.", MetricType::Gauge, stats->start_time_seconds);
  append(families, "process_threads", "Threads of the process.", MetricType::Gauge, stats->threads);
  append(families, "process_virtual_memory_bytes", "Virtual memory size.", MetricType::Gauge, stats->virtual_bytes);
  append(families, "process_resident_memory_bytes", "Resident memory size.", MetricType::Gauge, stats->resident_bytes);
}

} // namespace troupe::telemetry
