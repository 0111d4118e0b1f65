// Weights as plain floats, for comparisons: on the CPU, F32 weights take part in no rounding of activations.
#pragma once

#include "models/model.hpp"

namespace troupe {

// A copy with every matrix as F32, `threads` at work.
model_weights widened(const model_weights& weights, std::int32_t threads);

} // namespace troupe
