// The head's list of nodes: takes them in, watches them, carries orders from supervisors to them and news back.
//
//   hello --welcome--> joining --ready--> member --leave--> leaving --no group is on it--> gone
//
// A node that ends, or is not heard of for a second, is lost with all its ranks.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "actors/actor_pointer.hpp"
#include "actors/protocol.hpp"
#include "actors/serving_state.hpp"

namespace troupe::actors {

struct cluster_state {
  static constexpr const char* name = "cluster";

  struct member {
    node_description about;
    node_actor handle;
    std::int32_t slots = 0; // known when it is a member
    enum class phase : std::uint8_t { joining, member, leaving } now = phase::joining;
    bool upgrading = false;      // its program is being changed, or is to be
    bool wants_to_leave = false; // as soon as that is over
  };

  shared_state shared;
  std::map<node_number, member> nodes;
  node_number last_number = this_machine;    // numbers are not used again
  std::vector<supervisor_actor> supervisors; // by replica
  upgrade_actor upgrade;
};

// Which must be told of all supervisors before a node can join.
cluster_actor::behavior_type run_cluster(actor_pointer<cluster_actor, cluster_state> self, shared_state shared);

} // namespace troupe::actors
