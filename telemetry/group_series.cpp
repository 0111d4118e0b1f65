#include "telemetry/group_series.hpp"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "telemetry/buckets.hpp"

namespace troupe::telemetry {
namespace {

prometheus::Gauge& gauge(prometheus::Registry& registry, const char* name, const char* help, const prometheus::Labels& labels) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry).Add(labels);
}

prometheus::Counter& counter(prometheus::Registry& registry, const char* name, const char* help, const prometheus::Labels& labels) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry).Add(labels);
}

std::vector<prometheus::Counter*> add_faults(prometheus::Registry& registry, const prometheus::Labels& group) {
  constexpr std::array<const char*, collective_faults> names = {"deadline", "peer_lost", "aborted", "mismatch", "failed"};
  std::vector<prometheus::Counter*> counters;
  for (const char* name : names) {
    auto labels = group;
    labels.emplace("fault", name);
    counters.push_back(
        &counter(registry, "troupe_collective_faults_total", "Losses that a rank's collective was the first to tell of.", labels));
  }
  return counters;
}

rank_series add_rank(prometheus::Registry& registry, const prometheus::Labels& labels) {
  auto& steps =
      prometheus::BuildHistogram().Name("troupe_rank_step_seconds").Help("Duration of one rank's part of a step.").Register(registry);
  return {steps.Add(labels, time_buckets()),
          counter(registry, "troupe_rank_lag_seconds_total", "Time from the answer of the first rank of its stage to this one's.", labels),
          counter(registry, "troupe_rank_collective_wait_seconds_total", "Time in collectives before the last peer had come.", labels),
          counter(registry, "troupe_rank_collective_move_seconds_total", "Time in collectives after the last peer had come.", labels)};
}

} // namespace

std::vector<group_series> add_group_series(prometheus::Registry& registry, const prometheus::Labels& model, const group_shape& shape) {
  std::vector<group_series> groups;
  for (std::int32_t replica = 0; replica < std::max(1, shape.replicas); ++replica) {
    auto labels = model;
    labels.emplace("replica", std::to_string(replica));
    groups.push_back({gauge(registry, "troupe_group_up", "1 while the device group is up, else 0.", labels),
                      gauge(registry, "troupe_group_epoch", "Rises with each loss of the group.", labels),
                      gauge(registry, "troupe_group_waits_for_slots", "1 while the group waits for slots of a cluster, else 0.", labels),
                      gauge(registry, "troupe_group_sequences", "Sequences that wait or run at this replica.", labels),
                      counter(registry, "troupe_group_restarts_total", "How often the group was lost and formed anew.", labels),
                      counter(registry, "troupe_group_failed_starts_total", "Attempts to form a lost group that failed.", labels),
                      add_faults(registry, labels),
                      {}});
    for (std::int32_t rank = 0; rank < std::max(1, shape.ranks); ++rank) {
      auto of_rank = labels;
      of_rank.emplace("rank", std::to_string(rank));
      groups.back().ranks.push_back(add_rank(registry, of_rank));
    }
  }
  return groups;
}

} // namespace troupe::telemetry
