#include "apps/tracing.hpp"

#include <CLI/CLI.hpp>

namespace troupe::apps {

void add_trace_flag(CLI::App& command, std::string& file) {
  command.add_option("--trace", file, "Write what happens as a trace to this file, for ui.perfetto.dev or chrome://tracing");
}

std::shared_ptr<telemetry::timeline> open_trace(const std::string& file, telemetry::group_shape shape) {
  return file.empty() ? nullptr : std::make_shared<telemetry::timeline>(file, shape);
}

} // namespace troupe::apps
