// How messages and log lines name a replica and a rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace troupe::actors {

// "replica 1: " where there are several.
inline std::string replica_prefix(std::int32_t replica, std::int32_t replicas) {
  return replicas > 1 ? "replica " + std::to_string(replica) + ": " : std::string();
}

// "rank 1: " where there are several.
inline std::string rank_prefix(std::int32_t rank, std::size_t ranks) {
  return ranks > 1 ? "rank " + std::to_string(rank) + ": " : std::string();
}

} // namespace troupe::actors
