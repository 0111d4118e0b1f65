// What a step costs on a device kind: a table over decode rows, prefill tokens and context, measured (`troupe bench calibrate`) or
// worked out from a roofline (simulation/h200.hpp).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "core/step.hpp"

namespace troupe::simulation {

// A line in context: ns = base + slope * context, valid up to context `until`.
struct cost_line {
  double base = 0;
  double slope = 0;
  double until = 0;
};

// Nanoseconds over (count, context): bilinear between grid points, and on along the last cell beyond them; never below zero.
struct cost_grid {
  std::vector<double> counts;   // rows or tokens, ascending, the first at least 1
  std::vector<double> contexts; // tokens that stand before, ascending, at least two
  std::vector<double> ns;       // counts.size() x contexts.size(), row by row

  double at(double count, double context) const;
  cost_line line(double count, double context) const; // through `context`, for this count
};

// What one step computes. Contexts are means over its rows.
struct step_shape {
  double decode_rows = 0;
  double decode_context = 0;
  double prefill_tokens = 0;
  double prefill_context = 0; // position of the chunk's first token
};

// What a serving side around the device adds: HTTP, tokenizer, actors, and a client where it shares the machine.
struct serving_cost {
  double request_ns = 0; // to the time before a request's first token
  double step_ns = 0;    // to each step
  double row_ns = 0;     // to a step, for each of its decode rows: a token that is made into text and sent
};

struct device_table {
  std::string device; // as "cpu" or "H200"
  std::string model;
  executor_info limits; // of one replica
  cost_grid decode;     // steps of decode rows alone
  cost_grid prefill;    // steps of one prefill chunk alone
  double shared_ns = 0; // what a step with both pays once: reading the weights, starting the step
  serving_cost serving; // zero when it was not measured

  double step_ns(const step_shape& shape) const; // of the device and what serving adds to it
  // step_ns() of `rows` decode rows alone, as a line through `context`.
  cost_line decode_line(double rows, double context) const;
};

// The table's file format: docs/simulation.md. The error names the member at fault.
result<device_table> parse_device_table(std::string_view json_text);
std::string dump_device_table(const device_table& table);

} // namespace troupe::simulation
