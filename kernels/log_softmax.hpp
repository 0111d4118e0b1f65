// log softmax(x)_i = x_i - max(x) - ln sum_j e^(x_j - max(x)).
#pragma once

#include <cstdint>

namespace troupe {

// What turns any logit of a row into its log-probability: two numbers, kept apart for accuracy.
struct softmax_scale {
  float top = 0;       // the largest logit
  double log_sum = 0;  // ln sum e^(x - top), at least 0
  bool usable = false; // false when a logit is NaN or +inf, or none is finite

  float log_probability(float logit) const { return static_cast<float>(static_cast<double>(logit - top) - log_sum); }
};

namespace cpu {
// The largest of logits[0 .. count); NaN when one is NaN, -inf for none.
float max_logit(const float* logits, std::int64_t count);
softmax_scale log_softmax(const float* logits, std::int64_t count);
} // namespace cpu

} // namespace troupe
