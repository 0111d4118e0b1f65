// What each of the product's means is worth: the same load with one of them switched off, round by round beside the full system.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/bench/statistics.hpp"
#include "apps/bench/step_driver.hpp"
#include "core/value.hpp"

namespace troupe::bench {

struct ablation_options {
  std::int32_t batch = 8;
  std::int32_t prompt = 512; // tokens of each request
  std::int32_t output = 64;
  std::int32_t rounds = 5; // after one to warm up
  std::uint64_t seed = 1;
};

// One way to run. Several may share a driver.
struct ablation_variant {
  std::string name;
  step_driver* driver = nullptr;
  std::int32_t plans_in_flight = 2;
};

struct variant_figures {
  std::string name;
  summary step;          // seconds between results of steps that decode the whole batch, of all rounds
  summary end_to_end;    // seconds from admission to the last token of the last request, a sample a round
  double step_ratio = 1; // to the first variant: median over the rounds of a round's ratio of medians
  double end_to_end_ratio = 1;
  std::string failure; // why it has no figures; empty: it has
};

// Variants take turns, and each round begins with another. The first one is what the others are compared with. Another that fails runs
// no further; throws as step_driver when the first one fails.
std::vector<variant_figures> run_ablation(const std::vector<ablation_variant>& variants, const ablation_options& options);

value_array ablation_json(const std::vector<variant_figures>& figures);
std::string ablation_table(const std::vector<variant_figures>& figures);

} // namespace troupe::bench
