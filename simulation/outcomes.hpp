// What a simulated fleet's users felt, in bounded memory.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

namespace troupe::simulation {

// Nanoseconds in logarithmic buckets, each 1/32 of a doubling (2.2%) wide; a quantile is exact to half of that.
class time_histogram {
 public:
  void add(double ns, double weight = 1);
  void add(const time_histogram& other);
  double quantile(double q) const; // 0 without samples
  double mean() const { return weight_ > 0 ? sum_ / weight_ : 0; }
  double count() const { return weight_; }

 private:
  std::array<double, 1536> buckets_{}; // from 1 ns to 2^48 ns, three days
  double weight_ = 0;
  double sum_ = 0;
};

struct objectives { // none: not asked for
  std::optional<double> ttft_ns;
  std::optional<double> tpot_ns;
};

struct outcomes {
  time_histogram ttft; // arrival to first token
  time_histogram itl;  // between two tokens of a request
  time_histogram e2e;
  std::uint64_t finished = 0;
  std::uint64_t rejected = 0; // the queue was full, or it could never fit
  std::uint64_t good = 0;     // of the finished: met every objective
  std::uint64_t preemptions = 0;
  double prompt_tokens = 0; // of the finished
  double cached_tokens = 0;
  double output_tokens = 0;
  double steps = 0;
  double busy_ns = 0; // lanes computing
  double last_ns = 0; // when the last one finished

  void finish(double arrival_ns, double first_ns, double end_ns, double prompt, double output, const objectives& wanted);
  void add(const outcomes& other);
};

} // namespace troupe::simulation
