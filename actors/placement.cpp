#include "actors/placement.hpp"

#include <algorithm>
#include <numeric>

namespace troupe::actors {

namespace {

std::int32_t count(const free_slots& at) { return static_cast<std::int32_t>(at.slots.size()); }

void take(placement& to, free_slots& from, std::int32_t ranks) {
  for (std::int32_t i = 0; i < ranks; ++i) to.ranks.push_back({from.node, from.slots[static_cast<std::size_t>(i)]});
  from.slots.erase(from.slots.begin(), from.slots.begin() + ranks);
}

// The machine that takes all of `stages` and has the least room besides; else the one that takes most of them. Null: none takes any.
free_slots* best_for(std::vector<free_slots>& free, std::int32_t tp, std::int32_t stages) {
  free_slots* best = nullptr;
  const auto room = [&](const free_slots& at) { return std::min(count(at) / tp, stages); };
  for (free_slots& at : free) {
    if (room(at) == 0) continue;
    const bool better = best == nullptr || room(at) > room(*best) || (room(at) == room(*best) && count(at) < count(*best));
    if (better) best = &at;
  }
  return best;
}

} // namespace

std::optional<placement> place_group(std::vector<free_slots> free, std::int32_t tp, std::int32_t stages) {
  std::sort(free.begin(), free.end(), [](const free_slots& a, const free_slots& b) { return a.node < b.node; });
  for (free_slots& at : free) std::sort(at.slots.begin(), at.slots.end());
  const std::int32_t all =
      std::accumulate(free.begin(), free.end(), 0, [](std::int32_t sum, const free_slots& at) { return sum + count(at); });
  if (all < tp * stages) return std::nullopt;
  placement placed;
  std::int32_t left = stages;
  while (left > 0) {
    free_slots* const at = best_for(free, tp, left);
    if (at == nullptr) break;
    const std::int32_t here = std::min(count(*at) / tp, left);
    take(placed, *at, here * tp);
    left -= here;
  }
  placed.stages_split = left > 0;
  std::stable_sort(free.begin(), free.end(), [](const free_slots& a, const free_slots& b) { return count(a) > count(b); });
  std::int32_t ranks = left * tp;
  for (free_slots& at : free) {
    const std::int32_t here = std::min(count(at), ranks);
    take(placed, at, here);
    ranks -= here;
  }
  return placed;
}

} // namespace troupe::actors
