// A sweep over fleet sizes as a table, as JSON, and as a picture.
#pragma once

#include <string>
#include <vector>

#include "core/value.hpp"
#include "simulation/fleet.hpp"

namespace troupe::simulation {

struct sweep {
  std::string title; // device, model, layout, workload, router
  objectives wanted;
  double price_per_gpu_hour = 0; // 0: costs are not shown
  std::vector<fleet_report> points;
};

std::string text_report(const sweep& s);
value json_report(const sweep& s);
// Throughput and goodput over the number of nodes, both axes logarithmic, beside the latency percentiles.
std::string svg_report(const sweep& s);

} // namespace troupe::simulation
