// What is said while the program that a machine's ranks run is changed. Part of protocol.hpp.
//
//   serving --machine_upgrade--> upgrade          node --machine_upgrade--> cluster --the same--> upgrade
//   upgrade --program_change--> one supervisor after another --program_changed--> upgrade
//   upgrade --upgrade_note.., upgrade_end--> who asked it, and the cluster passes them on to the node
#pragma once

#include <caf/meta/type_name.hpp>
#include <cstdint>
#include <string>

#include "actors/placement.hpp"

namespace troupe::actors {

// Of those that a machine's ranks may run. The machine alone knows the files; 0 is the one that it began with.
using program_number = std::uint32_t;

// Why no change comes to its end then: no rank runs any program.
inline constexpr const char* server_is_stopping = "the server is stopping";

// A group's ranks on one machine are to run another program. Where the group is not up, that waits for it; but to undo a change needs no
// group: whoever starts later runs that program in any case.
struct program_change {
  node_number machine = this_machine;
  program_number program = 0;
  std::int64_t start_deadline_ms = 0; // of the ranks that run it; and so long it waits for the group, at most
  bool undo = false;                  // back to the one before
};

struct program_changed {
  std::string failure;         // empty: it runs; else why not, and the ranks run the program of before
  std::uint64_t paused_ns = 0; // no step was planned for so long
  std::int32_t ranks = 0;      // of the group on that machine; 0: nothing had to pause, and the program has shown nothing
};

// All groups' ranks on one machine are to run another program: those of one group after another, or of none.
struct machine_upgrade {
  node_number machine = this_machine;
  std::string who; // "node a", "the head": for the log and for those who wait
  program_number before = 0, program = 0;
  std::int64_t start_deadline_ms = 0;
};

// A line for whoever asked.
struct upgrade_note {
  node_number machine = this_machine;
  std::string text;
};

struct upgrade_end {
  node_number machine = this_machine;
  std::string failure; // as of program_changed; says what the ranks run
};

// To a node's own actor: a program that was found to be one (worker_protocol.hpp).
struct program_offer {
  std::string program; // the first word of a command line
  std::int64_t start_deadline_ms = 0;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, program_change& x) {
  return f(caf::meta::type_name("program_change"), x.machine, x.program, x.start_deadline_ms, x.undo);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, program_changed& x) {
  return f(caf::meta::type_name("program_changed"), x.failure, x.paused_ns, x.ranks);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, machine_upgrade& x) {
  return f(caf::meta::type_name("machine_upgrade"), x.machine, x.who, x.before, x.program, x.start_deadline_ms);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, upgrade_note& x) {
  return f(caf::meta::type_name("upgrade_note"), x.machine, x.text);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, upgrade_end& x) {
  return f(caf::meta::type_name("upgrade_end"), x.machine, x.failure);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, program_offer& x) {
  return f(caf::meta::type_name("program_offer"), x.program, x.start_deadline_ms);
}

} // namespace troupe::actors
