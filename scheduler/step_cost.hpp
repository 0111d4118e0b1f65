// How long a step takes, learned from the steps that were: time = a + b * tokens.
#pragma once

#include <cstdint>
#include <optional>

namespace troupe {

struct step_line {
  double per_step_ns = 0;
  double per_token_ns = 0;
};

// Least squares over weighted sums in which a step counts half as much after about 45 more; b is never below 0, and a neither.
class step_cost {
 public:
  void observe(std::int64_t tokens, std::uint64_t ns);
  // None before the first observation.
  std::optional<step_line> line() const;
  // Where steps were nearly of one size, chance decides the slope of a line; this one leans towards steps that cost as much before their
  // first token as `free_tokens` tokens do, the more the less their sizes differ.
  std::optional<step_line> line_near(double free_tokens) const;
  // Of `tokens` tokens in steps of at most `budget`; none before the first observation.
  std::optional<std::uint64_t> predict_ns(std::int64_t tokens, std::int64_t budget) const;

 private:
  double count_ = 0, tokens_ = 0, ns_ = 0, tokens_squared_ = 0, tokens_ns_ = 0;
};

// The mean of what was observed, later ones weighing more.
class decayed_mean {
 public:
  void observe(double x);
  double value() const { return count_ == 0 ? 0 : sum_ / count_; }

 private:
  double count_ = 0, sum_ = 0;
};

} // namespace troupe
