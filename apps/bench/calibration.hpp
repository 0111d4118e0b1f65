// From repeated measurements to a table of step costs: which shapes to time, and what stands for many samples. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "apps/bench/step_stopwatch.hpp"
#include "core/step.hpp"
#include "simulation/device_table.hpp"

namespace troupe::bench {

// A shape and what it took, nanoseconds, once a round.
struct timed_point {
  timed_shape shape;
  std::vector<double> ns;
};

// What a serving side adds, once a round. Samples may be negative: they are differences of two measured times.
struct serving_samples {
  std::vector<double> request_ns;                      // of a lone request, before its first token
  std::map<std::int32_t, std::vector<double>> step_ns; // of a step that decodes so many rows
};

// Points over rows, tokens and context that suit a device, and the table that the midmeans of their samples make.
// Not the fastest of each: a server's steps are as slow as the machine lets them be.
struct calibration {
  // Throws std::invalid_argument when the KV cache is too small to measure with.
  explicit calibration(const executor_info& info);

  simulation::device_table table() const; // without names

  executor_info limits;
  std::vector<double> decode_rows, prefill_tokens, contexts;
  std::vector<timed_point> decode, prefill; // over the axes, row by row
  // A step with decode rows and a chunk, and its parts, each of which is timed again beside it. Empty when the two never meet.
  std::vector<timed_point> mixed;
  serving_samples serving;
};

// Numbers of rows for which a serving side's steps are measured: one, a quarter of the slots, all of them.
std::vector<std::int32_t> serving_rows(const executor_info& info);

// A line through the midmeans over rows, neither part below zero: the line of least squares, else the best one that is level or begins at
// zero.
simulation::serving_cost serving_cost_of(const serving_samples& samples);

} // namespace troupe::bench
