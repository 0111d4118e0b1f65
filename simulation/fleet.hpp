// Many replicas behind a router, and the question that it all is for: what do twice as many nodes bring?
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "simulation/device_table.hpp"
#include "simulation/outcomes.hpp"
#include "simulation/workload.hpp"

namespace troupe::simulation {

enum class routing : std::uint8_t {
  round_robin,
  least_loaded, // the less loaded of two replicas drawn at random; of all while there are at most 16
  prefix_aware, // the replica that its prefix names, as long as that is worth_waiting() for (scheduler/replica_router.hpp)
};

struct fleet_config {
  device_table table; // of one lane
  std::int32_t nodes = 1;
  std::int32_t gpus_per_node = 8;
  std::int32_t gpus_per_replica = 1;
  std::int32_t lanes_per_replica = 1; // stages of its pipeline
  routing route = routing::round_robin;
  std::int32_t max_waiting = 1024; // of a lane
  double overhead_ns = 0;
  objectives wanted;
  bool exact = false; // the real scheduler in every lane
  std::int32_t threads = 2;
  std::uint64_t seed = 1;

  std::int64_t gpus() const { return std::int64_t{nodes} * gpus_per_node; }
  std::int64_t lanes() const { return gpus() / gpus_per_replica * lanes_per_replica; }
};

struct fleet_report {
  std::int32_t nodes = 0;
  std::int64_t gpus = 0;
  std::uint64_t offered = 0; // requests
  double span_s = 0;         // from the first arrival to the last arrival or end, whichever is later
  outcomes total;
  double busy = 0; // share of the lanes' time

  double tokens_per_second() const { return span_s > 0 ? total.output_tokens / span_s : 0; }
  double goodput() const { return span_s > 0 ? static_cast<double>(total.good) / span_s : 0; } // requests per second
  // Of prompt and output tokens together; 0 when nothing was finished.
  double cost_per_million_tokens(double price_per_gpu_hour) const;
};

// `rate` requests per second in all for `seconds`, then until all have ended.
fleet_report simulate_fleet(const fleet_config& fleet, const workload& what, double rate, double seconds);
// A trace of requests in order of arrival.
fleet_report simulate_fleet(const fleet_config& fleet, const std::vector<traffic>& trace, std::int32_t prefix_tokens = 0);

} // namespace troupe::simulation
