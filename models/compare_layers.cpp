#include "models/compare_layers.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "device/cpu/host_limits.hpp"
#include "models/cpu_model.hpp"

namespace troupe {

double relative_distance(std::span<const float> a, std::span<const float> b) {
  double apart = 0, size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
    apart += (x - y) * (x - y);
    size += y * y;
  }
  if (!std::isfinite(apart) || !std::isfinite(size)) return std::numeric_limits<double>::infinity();
  return apart == 0 ? 0 : size == 0 ? std::numeric_limits<double>::infinity() : std::sqrt(apart / size);
}

rounding_bounds measured_bounds(const layer_states& plain, std::span<const layer_states> probes) {
  constexpr double deviations = 5;
  rounding_bounds out{plain.tokens, {}};
  for (std::int32_t layer = 0; layer < plain.layers; ++layer) {
    std::vector<double> squares(static_cast<std::size_t>(plain.tokens));
    for (std::int32_t token = 0; token < plain.tokens; ++token) {
      for (const layer_states& probe : probes) {
        const double moved = relative_distance(probe.at(layer, token), plain.at(layer, token));
        squares[static_cast<std::size_t>(token)] += moved * moved / static_cast<double>(probes.size());
      }
    }
    double mean = 0;
    for (const double square : squares) mean += square / static_cast<double>(plain.tokens);
    for (const double square : squares) {
      const double bound = deviations * std::sqrt(std::max(square, mean));
      out.distance.push_back(std::isfinite(bound) ? bound : 0);
    }
  }
  return out;
}

layer_comparison compare_layers(const layer_states& tested, const layer_states& reference, const rounding_bounds& bounds) {
  layer_comparison out;
  for (std::int32_t layer = 0; layer < reference.layers; ++layer) {
    layer_parting worst{layer, 0, 0};
    for (std::int32_t token = 0; token < reference.tokens; ++token) {
      const layer_parting here{layer, token, relative_distance(tested.at(layer, token), reference.at(layer, token))};
      if (here.distance > worst.distance) worst = here;
      if (here.distance > bounds.at(layer, token) && !out.first_parted) out.first_parted = here;
    }
    out.worst.push_back(worst);
  }
  return out;
}

layer_states cpu_layer_states(std::shared_ptr<const model_weights> weights, std::span<const token_id> tokens) {
  constexpr std::int32_t block_size = 16;
  const auto rows = static_cast<std::int32_t>(tokens.size());
  const std::int32_t blocks = (rows + block_size - 1) / block_size;
  const model_config& config = weights->config;
  layer_states out{config.num_layers, rows, config.hidden_size, {}};
  cpu_model model(std::move(weights), {static_cast<std::int32_t>(cpu::usable_cores()), rows, 1, block_size, blocks, dtype::f32});
  std::vector<std::int32_t> positions(tokens.size());
  std::vector<block_id> table(static_cast<std::size_t>(blocks));
  for (std::size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<std::int32_t>(i);
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<block_id>(i);
  const attention_span span{0, rows, 0, table.data()};
  forward_batch batch{tokens, positions, {&span, 1}};
  batch.after_layer = [&](const float* hidden) {
    out.hidden.insert(out.hidden.end(), hidden, hidden + tokens.size() * static_cast<std::size_t>(out.width));
  };
  model.forward(batch);
  return out;
}

} // namespace troupe
