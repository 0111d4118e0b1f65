#include "telemetry/group_series.hpp"

#include <algorithm>
#include <array>
#include <cstdint>

#include "telemetry/buckets.hpp"

namespace troupe::telemetry {
namespace {

std::vector<prometheus::Counter*> add_faults(prometheus::Registry& registry, const label_map& group) {
  constexpr std::array<const char*, collective_faults> names = {"deadline", "peer_lost", "aborted", "mismatch", "failed"};
  std::vector<prometheus::Counter*> counters;
  for (const char* name : names) {
    counters.push_back(&add_counter(registry, "troupe_collective_faults_total", "Losses that a rank's collective was the first to tell of.",
                                    with_label(group, "fault", name)));
  }
  return counters;
}

rank_series add_rank(prometheus::Registry& registry, const label_map& labels) {
  return {
      add_histogram(registry, "troupe_rank_step_seconds", "Duration of one rank's part of a step.", labels, time_buckets()),
      add_counter(registry, "troupe_rank_lag_seconds_total", "Time from the answer of the first rank of its stage to this one's.", labels),
      add_counter(registry, "troupe_rank_collective_wait_seconds_total", "Time in collectives before the last peer had come.", labels),
      add_counter(registry, "troupe_rank_collective_move_seconds_total", "Time in collectives after the last peer had come.", labels)};
}

} // namespace

std::vector<group_series> add_group_series(prometheus::Registry& registry, const label_map& model, const group_shape& shape) {
  std::vector<group_series> groups;
  for (std::int32_t replica = 0; replica < std::max(1, shape.replicas); ++replica) {
    const label_map labels = with_label(model, "replica", std::to_string(replica));
    groups.push_back(
        {add_gauge(registry, "troupe_group_up", "1 while the device group is up, else 0.", labels),
         add_gauge(registry, "troupe_group_epoch", "Rises with each loss of the group.", labels),
         add_gauge(registry, "troupe_group_waits_for_slots", "1 while the group waits for slots of a cluster, else 0.", labels),
         add_gauge(registry, "troupe_group_sequences", "Sequences that wait or run at this replica.", labels),
         add_counter(registry, "troupe_group_restarts_total", "How often the group was lost and formed anew.", labels),
         add_counter(registry, "troupe_group_failed_starts_total", "Attempts to form a lost group that failed.", labels),
         add_faults(registry, labels),
         {}});
    for (std::int32_t rank = 0; rank < std::max(1, shape.ranks); ++rank) {
      groups.back().ranks.push_back(add_rank(registry, with_label(labels, "rank", std::to_string(rank))));
    }
  }
  return groups;
}

} // namespace troupe::telemetry
