// Changes the program that a machine's ranks run, in one group after another, and back in all where one fails: all ranks of a machine run
// one program. One machine at a time; who asks meanwhile waits for his turn.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <vector>

#include "actors/actor_pointer.hpp"
#include "actors/protocol.hpp"
#include "actors/serving_state.hpp"

namespace troupe::actors {

struct upgrade_state {
  static constexpr const char* name = "upgrade";

  struct job {
    machine_upgrade order;
    upgrade_listener asker;
  };

  shared_state shared;
  std::vector<supervisor_actor> supervisors; // by replica
  std::deque<job> jobs;                      // the first is under way
  std::size_t replica = 0;                   // whose turn it is
  std::string failure;                       // of the first job, which is being undone; empty: it goes on
  bool all_undone = true;                    // no group has kept the new program
};

upgrade_actor::behavior_type run_upgrades(actor_pointer<upgrade_actor, upgrade_state> self, shared_state shared,
                                          std::vector<supervisor_actor> supervisors);

} // namespace troupe::actors
