#include "scheduler/step_cost.hpp"

#include <algorithm>

namespace troupe {
namespace {

constexpr double kDecay = 63.0 / 64;
constexpr double kDoubt = 0.25; // variance of the steps' sizes below which they tell little of the slope

} // namespace

void step_cost::observe(std::int64_t tokens, std::uint64_t ns) {
  const double x = static_cast<double>(tokens);
  const double y = static_cast<double>(ns);
  count_ = count_ * kDecay + 1;
  tokens_ = tokens_ * kDecay + x;
  ns_ = ns_ * kDecay + y;
  tokens_squared_ = tokens_squared_ * kDecay + x * x;
  tokens_ns_ = tokens_ns_ * kDecay + x * y;
}

void decayed_mean::observe(double x) {
  count_ = count_ * kDecay + 1;
  sum_ = sum_ * kDecay + x;
}

std::optional<step_line> step_cost::line() const {
  if (count_ == 0) return std::nullopt;
  const double spread = count_ * tokens_squared_ - tokens_ * tokens_;
  double per_token = 0; // as long as all steps were of one size, more than a step's time is not known
  if (spread > 1e-6 * count_ * tokens_squared_) {
    per_token = std::clamp((count_ * tokens_ns_ - tokens_ * ns_) / spread, 0.0, ns_ / tokens_); // at the upper end, a is 0
  }
  return step_line{(ns_ - per_token * tokens_) / count_, per_token};
}

std::optional<step_line> step_cost::line_near(double free_tokens) const {
  if (count_ == 0) return std::nullopt;
  const double tokens = tokens_ / count_, ns = ns_ / count_;
  const double variance = std::max(tokens_squared_ / count_ - tokens * tokens, 0.0);
  const double covariance = tokens_ns_ / count_ - tokens * ns;
  const double expected = ns / (tokens + free_tokens);
  const double per_token = std::clamp((covariance + kDoubt * expected) / (variance + kDoubt), 0.0, ns / tokens);
  return step_line{ns - per_token * tokens, per_token};
}

std::optional<std::uint64_t> step_cost::predict_ns(std::int64_t tokens, std::int64_t budget) const {
  const auto cost = line();
  if (!cost) return std::nullopt;
  const std::int64_t steps = (tokens + budget - 1) / budget;
  return static_cast<std::uint64_t>(cost->per_step_ns * static_cast<double>(steps) + cost->per_token_ns * static_cast<double>(tokens));
}

} // namespace troupe
