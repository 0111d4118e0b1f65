// --trace FILE.
#pragma once

#include <memory>
#include <string>

#include "telemetry/timeline.hpp"

namespace CLI {
class App;
}

namespace troupe::apps {

void add_trace_flag(CLI::App& command, std::string& file);

// Null where no file is wanted. Throws std::runtime_error when it cannot be made.
std::shared_ptr<telemetry::timeline> open_trace(const std::string& file, telemetry::group_shape shape = {});

} // namespace troupe::apps
