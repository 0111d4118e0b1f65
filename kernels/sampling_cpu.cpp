#include "kernels/sampling.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/philox.hpp"
#include "kernels/simd.hpp"

namespace troupe {

bool has_penalties(const sampling_params& params) {
  return params.repetition_penalty != 1.0F || params.presence_penalty != 0.0F || params.frequency_penalty != 0.0F;
}

namespace cpu {
namespace {

constexpr float greedy_below = 1e-5F; // temperature
constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

bool in_vocabulary(token_id token, std::size_t vocab) { return token >= 0 && static_cast<std::size_t>(token) < vocab; }

// A finite logit stays finite whatever is done to it; the others stay what they are.
void set_logit(float& logit, float changed) {
  constexpr float limit = std::numeric_limits<float>::max();
  if (std::isfinite(logit)) logit = std::clamp(changed, -limit, limit);
}

// The lowest id among the largest logits.
token_id first_of(const float* logits, std::int64_t count, float top) {
  return static_cast<token_id>(std::find(logits, logits + count, top) - logits);
}

// x = e^((x - top) * inverse_temperature)
TROUPE_CLONES void to_weights(float* x, std::int64_t n, float top, float inverse_temperature) {
  for (std::int64_t i = 0; i < n; ++i) x[i] = simd::exp((x[i] - top) * inverse_temperature);
}

// Larger logits first, lower ids first among equals.
struct better {
  const float* logits;
  bool operator()(token_id a, token_id b) const { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; }
};

// The `k` best ids (0 < k), ascending. A buffer takes what beats the k-th best so far and is cut back to k when full.
void best_ids(const std::vector<float>& logits, std::size_t k, std::vector<token_id>& ids) {
  ids.clear();
  const better order{logits.data()};
  const std::size_t room = std::max<std::size_t>(2 * k, 256);
  float bar = minus_infinity; // an id that only equals the bar is behind k lower ids
  const auto cut = [&] {
    if (ids.size() <= k) return;
    std::nth_element(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(k - 1), ids.end(), order);
    ids.resize(k);
    bar = logits[static_cast<std::size_t>(ids.back())];
  };
  for (std::size_t id = 0; id < logits.size(); ++id) {
    if (!(logits[id] > bar)) continue;
    ids.push_back(static_cast<token_id>(id));
    if (ids.size() == room) cut();
  }
  cut();
  std::sort(ids.begin(), ids.end());
}

} // namespace

sampler::sampler(std::int64_t vocab) : logits_(static_cast<std::size_t>(vocab)), by_id_(logits_.size()) {
  weights_.reserve(logits_.size());
  kept_.reserve(logits_.size());
  order_.reserve(logits_.size());
}

void sampler::adjust(const sampling_row& row) {
  const sampling_params& params = *row.params;
  std::copy(row.logits, row.logits + logits_.size(), logits_.begin());
  if (has_penalties(params)) {
    for (const seen_token& seen : row.seen) {
      if (!in_vocabulary(seen.token, logits_.size())) continue;
      float& logit = logits_[static_cast<std::size_t>(seen.token)];
      set_logit(logit, logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty);
      if (seen.output_count == 0) continue;
      set_logit(logit, logit - params.presence_penalty - params.frequency_penalty * static_cast<float>(seen.output_count));
    }
  }
  for (const token_bias& bias : params.logit_bias) {
    if (!in_vocabulary(bias.token, logits_.size())) continue;
    float& logit = logits_[static_cast<std::size_t>(bias.token)];
    set_logit(logit, logit + bias.bias);
  }
  if (row.outputs >= params.min_tokens) return;
  for (const token_id token : params.suppressed) {
    if (in_vocabulary(token, logits_.size())) logits_[static_cast<std::size_t>(token)] = minus_infinity;
  }
}

std::optional<token_id> sampler::sample(const sampling_row& row) {
  const std::int64_t vocab = static_cast<std::int64_t>(logits_.size());
  const sampling_params& params = *row.params;
  float top = max_logit(row.logits, vocab);
  if (!std::isfinite(top)) return std::nullopt;
  const bool greedy = params.temperature < greedy_below;
  const bool changes = has_penalties(params) || !params.logit_bias.empty() || row.outputs < params.min_tokens;
  if (greedy && !changes) return first_of(row.logits, vocab, top);
  adjust(row);
  top = max_logit(logits_.data(), vocab);
  if (!std::isfinite(top)) return std::nullopt;
  if (greedy) return first_of(logits_.data(), vocab, top);
  return draw(row, top);
}

// Puts the best ids first in order_; how many of them it takes to weigh `goal`, at least 1. Halves are split off by rank, and only
// the one in which the goal is reached is looked at again.
std::size_t sampler::shortest_run(double goal) {
  const better order{logits_.data()};
  const auto weight = [this](std::size_t begin, std::size_t end) {
    double sum = 0;
    for (std::size_t i = begin; i < end; ++i) sum += by_id_[static_cast<std::size_t>(order_[i])];
    return sum;
  };
  std::size_t begin = 0, end = order_.size(); // fewer than `begin` do not reach the goal, `end` do or are all
  double reached = 0;
  while (end - begin > 1) {
    const std::size_t middle = begin + (end - begin) / 2;
    const auto at = [this](std::size_t i) { return order_.begin() + static_cast<std::ptrdiff_t>(i); };
    std::nth_element(at(begin), at(middle), at(end), order);
    const double half = weight(begin, middle);
    if (reached + half >= goal) {
      end = middle;
    } else {
      reached += half;
      begin = middle;
    }
  }
  return end;
}

// Keeps the shortest run of best ids whose share of the weight reaches top_p.
void sampler::keep_top_p(float top_p) {
  top_p = std::max(top_p, std::numeric_limits<float>::min()); // the best id is always kept
  const double total = std::accumulate(weights_.begin(), weights_.end(), 0.0);
  // When an id is needed, more than 1 - top_p of the weight lies on it and the ids behind it, none of which weighs more.
  const double lightest = (1.0 - static_cast<double>(top_p)) * total / static_cast<double>(kept_.size());
  order_.clear();
  for (std::size_t i = 0; i < kept_.size(); ++i) {
    if (static_cast<double>(weights_[i]) > lightest * 0.999) order_.push_back(kept_[i]);
    by_id_[static_cast<std::size_t>(kept_[i])] = weights_[i];
  }
  order_.resize(shortest_run(static_cast<double>(top_p) * total));
  std::sort(order_.begin(), order_.end());
  kept_.assign(order_.begin(), order_.end());
  weights_.resize(kept_.size());
  for (std::size_t i = 0; i < kept_.size(); ++i) weights_[i] = by_id_[static_cast<std::size_t>(kept_[i])];
}

token_id sampler::draw(const sampling_row& row, float top) {
  const sampling_params& params = *row.params;
  if (params.top_k > 0 && static_cast<std::size_t>(params.top_k) < logits_.size()) {
    best_ids(logits_, static_cast<std::size_t>(params.top_k), kept_);
  } else {
    kept_.resize(logits_.size());
    std::iota(kept_.begin(), kept_.end(), 0);
  }
  weights_.resize(kept_.size());
  std::transform(kept_.begin(), kept_.end(), weights_.begin(), [&](token_id id) { return logits_[static_cast<std::size_t>(id)]; });
  to_weights(weights_.data(), static_cast<std::int64_t>(weights_.size()), top, 1.0F / params.temperature);
  if (params.top_p < 1.0F) keep_top_p(params.top_p);
  const float lightest = std::min(params.min_p, 1.0F); // the best id weighs 1
  const auto counts = [lightest](float weight) { return weight >= lightest ? static_cast<double>(weight) : 0.0; };
  double total = 0;
  for (const float weight : weights_) total += counts(weight);
  const double goal = uniform_at(params.seed, static_cast<std::uint64_t>(row.position)) * total;
  double reached = 0;
  token_id last = kept_.front();
  for (std::size_t i = 0; i < kept_.size(); ++i) {
    const double weight = counts(weights_[i]);
    if (weight == 0.0) continue;
    last = kept_[i];
    reached += weight;
    if (reached > goal) break;
  }
  return last;
}

token_scores score_token(const float* logits, std::int64_t vocab, const softmax_scale& scale, token_id token, std::int32_t top) {
  token_scores scores;
  scores.chosen = {token, scale.log_probability(logits[token])};
  const std::size_t wanted = static_cast<std::size_t>(std::clamp<std::int64_t>(top, 0, vocab));
  if (wanted == 0) return scores;
  std::vector<token_id> best; // best first
  best.reserve(wanted + 1);
  const better order{logits};
  for (std::int64_t i = 0; i < vocab; ++i) {
    const token_id id = static_cast<token_id>(i);
    if (best.size() == wanted && !(logits[id] > logits[best.back()])) continue;
    best.insert(std::upper_bound(best.begin(), best.end(), id, order), id);
    if (best.size() > wanted) best.pop_back();
  }
  for (const token_id id : best) scores.top.push_back({id, scale.log_probability(logits[id])});
  return scores;
}

} // namespace cpu
} // namespace troupe
