// How many device groups and ranks there are, and what one rank's part of a step took.
#pragma once

#include <cstdint>

namespace troupe::telemetry {

// Device groups and their ranks: labels `replica` and `rank`, from 0.
struct group_shape {
  std::int32_t replicas = 1;
  std::int32_t ranks = 1; // of each
};

// One rank's part of a step, in nanoseconds.
struct rank_times {
  std::uint64_t step_ns = 0; // from the plan, or this rank's answer to the one before, to its answer
  std::uint64_t lag_ns = 0;  // from the answer of the first rank of its stage to this one's
  std::uint64_t wait_ns = 0; // in collectives, for the last peer to come
  std::uint64_t move_ns = 0; // in collectives, after that; all the time in them where the device cannot tell
};

} // namespace troupe::telemetry
