// Two ways through the same layers, side by side: where they part, and by how much.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/ids.hpp"
#include "models/model.hpp"

namespace troupe {

// The hidden state of every token behind every layer.
struct layer_states {
  std::int32_t layers = 0;
  std::int32_t tokens = 0;
  std::int32_t width = 0;
  std::vector<float> hidden; // [layers][tokens][width]

  std::span<const float> at(std::int32_t layer, std::int32_t token) const {
    const auto row = static_cast<std::size_t>(layer) * static_cast<std::size_t>(tokens) + static_cast<std::size_t>(token);
    return {hidden.data() + row * static_cast<std::size_t>(width), static_cast<std::size_t>(width)};
  }
};

// |a - b| / |b| of one hidden state, in the Euclidean norm; infinite where either holds a NaN.
double relative_distance(std::span<const float> a, std::span<const float> b);

struct layer_parting {
  std::int32_t layer = 0;
  std::int32_t token = 0;
  double distance = 0;
};

struct layer_comparison {
  std::vector<layer_parting> worst;          // of each layer
  std::optional<layer_parting> first_parted; // by layer, then token
};

// How far two states may lie apart behind layer `layer` (from 0) through rounding to `unit` (2^-8 for bf16, 2^-11 for f16) alone: each
// layer adds two sums to the hidden state, each with the rounding of a few ops on the way, and independent errors add up as their root.
double rounding_tolerance(std::int32_t layer, double unit);

// `unit`: the coarser of the two sides'. States are of the same shape.
layer_comparison compare_layers(const layer_states& tested, const layer_states& reference, double unit);

// On the CPU reference. `tokens` at positions 0, 1, ..
layer_states cpu_layer_states(std::shared_ptr<const model_weights> weights, std::span<const token_id> tokens);

} // namespace troupe
