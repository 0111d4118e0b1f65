// From flags to a running serving side: the model's parts, its keeper, actors.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "actors/serving.hpp"
#include "apps/engine_options.hpp"
#include "telemetry/metrics.hpp"
#include "telemetry/timeline.hpp"

namespace troupe::apps {

// The names that "model" may hold: the flag's, or the file's or folder's own.
std::vector<std::string> served_names(const engine_options& options);

telemetry::group_shape shape_of(const engine_options& options);

// With series for all ranks and replicas.
std::shared_ptr<telemetry::metrics> make_metrics(const engine_options& options);

class cluster_head; // apps/cluster/head.hpp

// Everything together; returns once the device is ready. `timeline` may be null; `make_executor` takes the place of what the flags say of
// the device; with a `head`, which outlives the engine, ranks are placed on the machines of its cluster. Throws load_error and
// std::runtime_error.
std::unique_ptr<actors::serving> start_engine(engine_options options, std::shared_ptr<telemetry::metrics> metrics,
                                              std::shared_ptr<telemetry::timeline> timeline = nullptr,
                                              actors::executor_factory make_executor = {}, cluster_head* head = nullptr);

} // namespace troupe::apps
