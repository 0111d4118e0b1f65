// Decides what a CPU executor takes, before it takes anything.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/step.hpp"
#include "models/cpu_executor.hpp"
#include "models/cpu_model.hpp"

namespace troupe {

struct executor_plan {
  executor_info info;
  cpu_model_shape shape;
  std::size_t kv_bytes = 0;
  std::size_t activation_bytes = 0;
  std::size_t weight_bytes = 0; // as stored
};

// Throws load_error, with the numbers, when options and model cannot work together.
executor_plan plan_executor(const model_weights& weights, const cpu_executor_options& options);

} // namespace troupe
