#include "scheduler/speculation.hpp"

#include <algorithm>

namespace troupe {
namespace {

constexpr float kKeep = 15.0F / 16; // weight of what was seen before
constexpr float kPriorRuns = 2;

constexpr double kDecay = 63.0 / 64;
constexpr std::int32_t kPlainAtFirst = 4; // steps
constexpr std::int32_t kPlainEvery = 64;
constexpr std::int32_t kTrial = 16;
constexpr double kFreeRows = 64; // what reading the weights costs, in rows: little enough for a first try even in a large batch
constexpr std::int32_t kShortestPause = 64, kLongestPause = 4096;

std::size_t index_of(std::int32_t place) { return std::min(static_cast<std::size_t>(place), draft_counts::kPlaces - 1); }

std::int32_t most_drafts(const speculation_config& config, const executor_info& device) {
  std::int32_t most = std::min(config.max_drafts, device.max_verify_tokens - 1);
  if (config.source == draft_source::model) most = std::min(most, device.max_proposals);
  return config.source == draft_source::none ? 0 : std::max(most, 0);
}

} // namespace

void acceptance::observe(std::int32_t drafted, std::int32_t accepted) {
  for (std::int32_t place = 0; place < std::min(drafted, accepted + 1); ++place) {
    tried_[index_of(place)] = tried_[index_of(place)] * kKeep + 1;
    kept_[index_of(place)] = kept_[index_of(place)] * kKeep + (place < accepted ? 1 : 0);
  }
}

void acceptance::fade() {
  for (std::size_t i = 0; i < tried_.size(); ++i) {
    tried_[i] *= kKeep;
    kept_[i] *= kKeep;
  }
}

double acceptance::rate(std::int32_t place) const {
  const std::size_t i = index_of(place);
  return static_cast<double>((kept_[i] + kPriorRuns * prior_) / (tried_[i] + kPriorRuns));
}

speculation::speculation(const speculation_config& config, const executor_info& device)
    : source_(config.source), max_drafts_(most_drafts(config, device)), measured_(config.measured), next_pause_(kShortestPause) {}

bool speculation::on() const {
  if (max_drafts_ == 0) return false;
  return !measured_ || (pause_ == 0 && plain_steps_ >= kPlainAtFirst && since_plain_ < kPlainEvery);
}

void speculation::set_price(std::int64_t draws, std::int64_t rows) {
  const auto cost = rows_.line_near(kFreeRows);
  if (!measured_ || !cost) return;
  const double step = cost->per_step_ns + cost->per_token_ns * static_cast<double>(rows);
  price_ = step > 0 ? cost->per_token_ns * static_cast<double>(draws) / step : 0;
}

std::int32_t speculation::run_length(const acceptance& past, std::int32_t most) const {
  if (!measured_) return most;
  double survives = 1;
  for (std::int32_t place = 0; place < most; ++place) {
    survives *= past.rate(place);
    if (survives < price_) return place;
  }
  return most;
}

void speculation::observe(const measured_step& step) {
  if (!measured_ || max_drafts_ == 0 || step.prefill_rows > 0) return;
  rows_.observe(step.rows, step.ns);
  if (step.speculative) {
    ++since_plain_;
    return judge(step);
  }
  plain_.observe(step.rows, step.ns);
  plain_steps_ = std::min(plain_steps_ + 1, kPlainAtFirst);
  since_plain_ = 0;
  pause_ = std::max(pause_ - 1, 0);
}

void speculation::judge(const measured_step& step) {
  const auto plain = plain_.line();
  if (!plain) return;
  const double draws = static_cast<double>(step.draws);
  outputs_ = outputs_ * kDecay + static_cast<double>(step.outputs);
  ns_ = ns_ * kDecay + static_cast<double>(step.ns);
  plain_outputs_ = plain_outputs_ * kDecay + draws;
  plain_ns_ = plain_ns_ * kDecay + plain->per_step_ns + plain->per_token_ns * draws;
  if (++trial_steps_ < kTrial) return;
  if (outputs_ * plain_ns_ >= plain_outputs_ * ns_) {
    if (trial_steps_ >= 4 * kTrial) next_pause_ = kShortestPause; // it has paid for a while
    return;
  }
  pause_ = next_pause_;
  next_pause_ = std::min(2 * next_pause_, kLongestPause);
  trial_steps_ = 0;
  outputs_ = ns_ = plain_outputs_ = plain_ns_ = 0;
}

} // namespace troupe
