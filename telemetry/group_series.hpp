// The series of device groups and their ranks. Part of metrics' implementation.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <cstdint>
#include <vector>

#include "telemetry/metrics.hpp"

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
  prometheus::Gauge& sequences;
  prometheus::Counter& restarts;
  std::vector<rank_series> ranks;
};

// By replica. Every series exists from the start.
std::vector<group_series> add_group_series(prometheus::Registry& registry, const prometheus::Labels& model, const group_shape& shape);

} // namespace troupe::telemetry
