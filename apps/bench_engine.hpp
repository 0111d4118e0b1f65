// What the benches on a bare executor share: the model, its executor, ceilings and the head of a result.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "apps/bench/machine.hpp"
#include "apps/bench/model_cost.hpp"
#include "apps/model_source.hpp"

namespace CLI {
class App;
}

namespace troupe::apps {

// Steps on a bare executor are plain ones: throws std::invalid_argument when the flags ask for speculation.
void refuse_speculation(const engine_options& options);

// "cpu" or "cuda": what `options` come to here. Throws load_error as choose_device.
std::string device_kind(const engine_options& options, const checkpoint& source);

// Best rates of that device, measured now. What fails is logged and leaves them unknown: the figures beside them are not lost.
bench::rate_ceilings measure_ceilings(const engine_options& options, const checkpoint& source);
// The machine, with the first GPU for "cuda".
bench::machine_info machine_of(const std::string& device, std::int32_t gpu_number = 0);

// What a step on the device that `options` name must move.
bench::model_cost cost_of(const engine_options& options, const checkpoint& source);

// Kind, version, command, machine, ceilings, "model" with name and shapes, and "parallel": tp, pp, dp.
value_object begin_result(const std::string& kind, const engine_options& options, const checkpoint& source,
                          const bench::rate_ceilings& ceilings);

// Adds --json.
void add_json_flag(CLI::App& command, std::string& file);
// Prints `table` and writes `result` as --json wants it. The exit code: 1 when that fails, or the result holds a "failure" or no ceilings.
int report_result(const std::string& json_file, const std::string& table, const value& result);

} // namespace troupe::apps
