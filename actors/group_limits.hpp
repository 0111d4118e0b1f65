// What the ranks of a group must agree on, and a group with the ones before it. Pure.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "core/step.hpp"

namespace troupe::actors {

struct group_limits {
  executor_info info;    // of the group, when nobody objects
  std::string objection; // or why the group cannot serve; empty: it can
};

// Ranks must be equal but for their KV pools, the smallest of which counts for all. `first`: what this group was when it was first formed;
// it must have as many blocks again, and uses no more.
group_limits limits_of_group(std::span<const executor_info> ranks, const std::optional<executor_info>& first);

} // namespace troupe::actors
