// The series of device groups and their ranks. Part of metrics' implementation.
#pragma once

#include <vector>

#include "telemetry/metrics.hpp"
#include "telemetry/series.hpp"

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
std::vector<group_series> add_group_series(prometheus::Registry& registry, const label_map& model, const group_shape& shape);

} // namespace troupe::telemetry
