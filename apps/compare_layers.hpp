// troupe run MODEL PROMPT --compare-layers WHAT: two ways through the layers, side by side.
#pragma once

#include <string>

#include "apps/engine_options.hpp"

namespace troupe::apps {

// `what`: "fused" (decode steps against the plain path), "prefill" (the prompt in one step against the plain path) or "cpu" (the plain path
// against the CPU reference, with its weights as floats). Prints a line per layer and where the two part first. Returns the exit code: 0
// where rounding explains every difference. Throws load_error.
int compare_layers(const engine_options& options, const std::string& prompt, const std::string& what);

} // namespace troupe::apps
