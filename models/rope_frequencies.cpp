#include "models/rope_frequencies.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace troupe {
namespace {

constexpr double full_turn = 2.0 * std::numbers::pi;

// Long waves are stretched by `factor`, short ones kept, those between blended.
double llama3_frequency(const rope_config& config, double frequency) {
  const double turns = config.original_max_position * frequency / full_turn; // within the original context
  if (turns > config.high_freq_factor) return frequency;
  if (turns < config.low_freq_factor) return frequency / config.factor;
  const double blend = (turns - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor);
  return (1.0 - blend) * frequency / config.factor + blend * frequency;
}

// arXiv 2309.00071, section 3.2: pairs that turn more than beta_fast times keep their frequency, below beta_slow they are interpolated.
void apply_yarn(const rope_config& config, rope_spectrum& spectrum) {
  const double dim = config.rotary_dim;
  const auto pair_of = [&](double turns) {
    return dim * std::log(config.original_max_position / (turns * full_turn)) / (2.0 * std::log(config.theta));
  };
  const double low = std::max(std::floor(pair_of(config.beta_fast)), 0.0);
  double high = std::min(std::ceil(pair_of(config.beta_slow)), dim - 1.0);
  if (high == low) high += 0.001;
  for (std::size_t i = 0; i < spectrum.frequencies.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    spectrum.frequencies[i] *= (1.0 - ramp) + ramp / config.factor;
  }
  const double by_default = config.factor > 1.0 ? 0.1 * std::log(config.factor) + 1.0 : 1.0;
  spectrum.magnitude = config.attention_factor.value_or(by_default);
}

} // namespace

rope_spectrum rope_frequencies(const rope_config& config) {
  rope_spectrum spectrum;
  for (std::int32_t i = 0; i < config.rotary_dim / 2; ++i) {
    spectrum.frequencies.push_back(std::pow(config.theta, -2.0 * i / static_cast<double>(config.rotary_dim)));
  }
  for (double& frequency : spectrum.frequencies) {
    if (config.scaling == rope_scaling_kind::linear) frequency /= config.factor;
    if (config.scaling == rope_scaling_kind::llama3) frequency = llama3_frequency(config, frequency);
  }
  if (config.scaling == rope_scaling_kind::yarn) apply_yarn(config, spectrum);
  const std::size_t divisors = std::min(config.frequency_divisors.size(), spectrum.frequencies.size());
  for (std::size_t i = 0; i < divisors; ++i) spectrum.frequencies[i] /= static_cast<double>(config.frequency_divisors[i]);
  return spectrum;
}

} // namespace troupe
