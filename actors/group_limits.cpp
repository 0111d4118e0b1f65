#include "actors/group_limits.hpp"

#include <algorithm>
#include <exception>

#include "scheduler/scheduler.hpp"

namespace troupe::actors {

namespace {

bool equal_but_blocks(executor_info a, const executor_info& b) {
  a.num_blocks = b.num_blocks;
  return a == b;
}

} // namespace

group_limits limits_of_group(std::span<const executor_info> ranks, const std::optional<executor_info>& first) {
  executor_info info = ranks.front();
  for (std::size_t r = 1; r < ranks.size(); ++r) {
    if (!equal_but_blocks(ranks[r], info)) return {info, "rank " + std::to_string(r) + " has other limits than rank 0"};
    info.num_blocks = std::min(info.num_blocks, ranks[r].num_blocks);
  }
  if (first && (!equal_but_blocks(info, *first) || info.num_blocks < first->num_blocks)) {
    return {info, "the new devices have other limits than those before"};
  }
  if (first) info = *first;
  try {
    scheduler check(scheduler_config{info, 1, 1});
  } catch (const std::exception& e) {
    return {info, e.what()};
  }
  return {info, {}};
}

} // namespace troupe::actors
