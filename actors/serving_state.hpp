// What the actors of one serving side share: immutable parts, the registry, the health board. Outlives them all.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "actors/cluster.hpp"
#include "actors/health.hpp"
#include "actors/place_names.hpp"
#include "actors/program_list.hpp"
#include "actors/request_registry.hpp"
#include "actors/serving.hpp"
#include "actors/slot_board.hpp"

namespace troupe::actors {

struct serving_state {
  serving_state(serving_options o, serving_parts p)
      : options(std::move(o)),
        parts(std::move(p)),
        cluster(parts.cluster),
        slots(make_slots()),
        programs(options.worker_command.empty() ? std::string() : options.worker_command.front()),
        registry({options.max_queue, std::size_t{256} << 20}, options.replicas),
        health(options.replicas, options.step_deadline, options.start_deadline, cluster ? cluster->groups_wait : nullptr),
        device_pids(static_cast<std::size_t>(options.replicas) * static_cast<std::size_t>(options.group_size)) {}

  std::unique_ptr<slot_board> make_slots() const {
    if (!cluster) return nullptr;
    return std::make_unique<slot_board>(options.group_size / options.stages, options.stages, cluster->local_slots, cluster->least_nodes);
  }
  std::atomic<int>& device_pid(std::int32_t replica, std::int32_t rank) {
    return device_pids[static_cast<std::size_t>(replica) * static_cast<std::size_t>(options.group_size) + static_cast<std::size_t>(rank)];
  }
  // Something is amiss ..
  void log(const std::string& line) const {
    if (parts.log) parts.log(log_level::warning, line);
  }
  // .. or has come about in order.
  void inform(const std::string& line) const {
    if (parts.log) parts.log(log_level::info, line);
  }
  std::string replica_prefix(std::int32_t replica) const { return actors::replica_prefix(replica, options.replicas); }
  // A supervisor has no room for its group, and what is missing; empty: it waits no more.
  void group_waits(std::int32_t replica, const std::string& for_what) {
    health.group_waits(replica, for_what);
    parts.metrics->set_group_waiting(replica, !for_what.empty());
  }

  const serving_options options;
  const serving_parts parts;
  const std::optional<cluster_options> cluster; // of parts
  const std::unique_ptr<slot_board> slots;      // null outside a cluster
  program_list programs;                        // of this machine
  served_model model;                           // complete before the first request, as are the next two
  std::int32_t block_size = 0;
  std::int32_t num_blocks = 0; // of the smallest replica
  request_registry registry;
  health_board health;
  std::vector<std::atomic<int>> device_pids; // by replica, then rank; 0: none
};

using shared_state = std::shared_ptr<serving_state>;

// Ends a request that no other actor knows (any more): on_error, and its one place in the metrics.
void end_with_error(serving_state& state, request_id id, const error& reason, const telemetry::request_times& times = {});
// The same for a sink that was never registered.
void refuse(serving_state& state, token_sink& sink, const error& reason);

telemetry::outcome outcome_of(const error& reason);

} // namespace troupe::actors
