// Compares two results of the benches by their ratios to the ceilings of their own runs, so that a machine's mood does not count. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/value.hpp"

namespace troupe::bench {

struct regress_tolerances { // of a figure's relative change for the worse
  double typical = 0.05;    // medians and rates
  double tail = 0.25;       // p99 and what is made of it
};

// One figure of both results, as a ratio to a ceiling.
struct compared_figure {
  std::string name;
  std::string unit; // what the two numbers are
  double before = 0, after = 0;
  double worse_by = 0; // relative; below 0: better
  bool lost = false;
};

struct regress_report {
  std::vector<compared_figure> figures;
  std::vector<std::string> problems; // why figures cannot be compared, or are missing
  bool passed() const;
};

// Results of `bench latency`, `throughput` or `ablation`: both of one kind, device, kind of machine, model and workload.
regress_report compare_results(const value& before, const value& after, const regress_tolerances& tolerances);

std::string regress_table(const regress_report& report);

} // namespace troupe::bench
