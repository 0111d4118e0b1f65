// The series of device groups and their ranks. Part of metrics' implementation.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "telemetry/metrics.hpp"

namespace prometheus {
class Counter;
class Gauge;
class Histogram;
class Registry;
} // namespace prometheus

namespace troupe::telemetry {

struct rank_series {
  prometheus::Histogram& step_time;
  prometheus::Counter& lag;
  prometheus::Counter& wait;
  prometheus::Counter& move;
};

struct group_series {
  prometheus::Gauge& up;
  prometheus::Gauge& epoch;
  prometheus::Gauge& waiting;
  prometheus::Gauge& sequences;
  prometheus::Counter& restarts;
  prometheus::Counter& failed_starts;
  std::vector<prometheus::Counter*> collective_faults; // by collective_fault
  std::vector<rank_series> ranks;
};

// By replica. Every series exists from the start.
std::vector<group_series> add_group_series(prometheus::Registry& registry, const std::map<std::string, std::string>& model,
                                           const group_shape& shape);

} // namespace troupe::telemetry
