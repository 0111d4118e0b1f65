#include "simulation/outcomes.hpp"

#include <algorithm>
#include <cmath>

namespace troupe::simulation {

namespace {

constexpr double kBucketsPerDoubling = 32;

}

void time_histogram::add(double ns, double weight) {
  const double place = ns > 1 ? std::log2(ns) * kBucketsPerDoubling : 0;
  buckets_[static_cast<std::size_t>(std::min<double>(place, static_cast<double>(buckets_.size() - 1)))] += weight;
  weight_ += weight;
  sum_ += ns * weight;
}

void time_histogram::add(const time_histogram& o) {
  for (std::size_t i = 0; i < buckets_.size(); ++i) buckets_[i] += o.buckets_[i];
  weight_ += o.weight_;
  sum_ += o.sum_;
}

double time_histogram::quantile(double q) const {
  double left = q * weight_;
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    left -= buckets_[i];
    if (buckets_[i] > 0 && left <= 0) return std::exp2((static_cast<double>(i) + 0.5) / kBucketsPerDoubling);
  }
  return 0;
}

void outcomes::finish(double arrival_ns, double first_ns, double end_ns, double prompt, double output, const objectives& wanted) {
  ttft.add(first_ns - arrival_ns);
  e2e.add(end_ns - arrival_ns);
  ++finished;
  prompt_tokens += prompt;
  output_tokens += output;
  last_ns = std::max(last_ns, end_ns);
  const bool prompt_start = !wanted.ttft_ns || first_ns - arrival_ns <= *wanted.ttft_ns;
  const bool pace = !wanted.tpot_ns || output < 2 || (end_ns - first_ns) / (output - 1) <= *wanted.tpot_ns;
  if (prompt_start && pace) ++good;
}

void outcomes::add(const outcomes& o) {
  ttft.add(o.ttft);
  itl.add(o.itl);
  e2e.add(o.e2e);
  finished += o.finished;
  rejected += o.rejected;
  good += o.good;
  preemptions += o.preemptions;
  prompt_tokens += o.prompt_tokens;
  cached_tokens += o.cached_tokens;
  output_tokens += o.output_tokens;
  steps += o.steps;
  busy_ns += o.busy_ns;
  last_ns = std::max(last_ns, o.last_ns);
}

} // namespace troupe::simulation
