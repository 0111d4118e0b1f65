// Weights as plain floats, for comparisons: on the CPU, F32 weights take part in no rounding of activations.
#pragma once

#include <cstdint>

#include "models/model.hpp"

namespace troupe {

// A copy with every matrix as F32, `threads` at work.
model_weights widened(const model_weights& weights, std::int32_t threads);

// The same with every element w of a matrix or a norm at w (1 + unit x), x at random from [-1, 1] by `seed`: with the unit of a type (2^-8
// for bf16, 2^-11 for f16) about what rounding to it does.
model_weights jittered(const model_weights& weights, double unit, std::uint32_t seed, std::int32_t threads);

} // namespace troupe
