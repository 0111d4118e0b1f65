// One scheduler and its device (a lane of one, under pipeline parallelism) in virtual time.
#pragma once

#include <cstdint>
#include <memory>

#include "simulation/device_table.hpp"
#include "simulation/outcomes.hpp"
#include "simulation/workload.hpp"

namespace troupe::simulation {

struct replica_config {
  const device_table* table = nullptr; // outlives the replica
  std::int32_t max_waiting = 1024;
  double overhead_ns = 0; // of a request before its first step, on top of what the table says of serving
  objectives wanted;
};

class replica {
 public:
  virtual ~replica() = default;
  // Everything that happens up to `until_ns`; infinity: to the end of all work.
  virtual void advance(double until_ns) = 0;
  // A request arrives, no earlier than the last advance() went. `cached_tokens` of its prompt need no computing.
  virtual void add(const traffic& request, std::int32_t cached_tokens) = 0;
  virtual std::int32_t load() const = 0; // requests that wait or run
  const outcomes& results() const { return results_; }

 protected:
  outcomes results_;
};

// The real scheduler, step by step.
std::unique_ptr<replica> make_exact_replica(const replica_config& config);
// Its arithmetic alone, which skips over runs of equal steps in closed form. The same plans at the same times while the KV pool
// suffices (tests/simulation/replica_test.cpp compares the two); where it does not, who is preempted is an approximation.
std::unique_ptr<replica> make_fast_replica(const replica_config& config);

} // namespace troupe::simulation
