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

// How far two states may lie apart through rounding alone.
struct rounding_bounds {
  std::int32_t tokens = 0;
  std::vector<double> distance; // [layers][tokens]

  double at(std::int32_t layer, std::int32_t token) const {
    return distance[static_cast<std::size_t>(layer) * static_cast<std::size_t>(tokens) + static_cast<std::size_t>(token)];
  }
};
// Measured: `probes` are runs of the same path over weights that were moved by about a rounding (jittered()), each by other random numbers,
// so that all that is rounded on the way is rounded anew. How far that carries depends on the model: where large terms cancel, the rest
// holds their errors. The bound is five times the root mean square over the probes of what came of it, at this token or over all, whichever
// is more; 0 where a probe came to no number.
rounding_bounds measured_bounds(const layer_states& plain, std::span<const layer_states> probes);

// States and bounds are of the same shape.
layer_comparison compare_layers(const layer_states& tested, const layer_states& reference, const rounding_bounds& bounds);

// On the CPU reference. `tokens` at positions 0, 1, ..
layer_states cpu_layer_states(std::shared_ptr<const model_weights> weights, std::span<const token_id> tokens);

} // namespace troupe
