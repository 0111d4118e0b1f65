// Starts the ranks of one group, watches them and the other actors, forms a lost group anew, and gives it up when it is lost too often.
//
//   waiting --slots enough--> starting --all ranks ready--> up --suspect--> retiring --all ended--> starting ...    (restart intensity
//   allowing, else failed) (outside a cluster there are always slots enough; up --its node leaves--> retiring) up --a rank hung up, or
//   waited in vain--> doubtful --the cause is known, or time is up--> retiring up --paused for another program--> retiring
//
// All ranks start at once; rank 0 says where the others meet it. A rank that is lost takes the others with it: all are told to go before
// the next group starts. One that does not go in time is abandoned (a thread cannot be killed, a process can).
#pragma once

#include <caf/typed_response_promise.hpp>
#include <chrono>
#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "actors/actor_pointer.hpp"
#include "actors/protocol.hpp"
#include "actors/restart_policy.hpp"
#include "actors/serving_state.hpp"
#include "actors/worker_process.hpp"

namespace troupe::actors {

// The actors without which the group cannot serve; the scheduler is its own.
struct core_actors {
  gateway_actor gateway;
  scheduler_actor scheduler;
  detokenizer_actor detokenizer;
  cluster_actor cluster; // null outside a cluster
};

// How the first start went: a value, a load_error or a std::runtime_error.
using first_start = std::shared_ptr<std::promise<executor_info>>;

// One rank of the group that is being started, is up, or is going.
struct rank_seat {
  std::string token;                     // proves that a device is the one that was started for this seat
  caf::actor_addr address;               // of the device: in this process from the start on, else from its hello on
  device_actor device;                   // null before its hello
  std::optional<executor_info> info;     // none before it is ready
  bool kv_kept = false;                  // it has the KV of the rank before it
  std::unique_ptr<worker_process> child; // null: a thread of this process, or a child that has ended
  generation_number started_as = 0;      // what news of the child bear: the group's generation, or a standby's number
  place where;                           // in a cluster
};

// A process that waits to take a rank's place (actors/supervisor_standby.hpp).
struct standby_seat {
  std::unique_ptr<standby_process> process; // null: there is none
  generation_number number = 0;             // that its news bear; 0: it was told to go
  program_number program = 0;
  std::uint64_t made_ns = 0;
};

// A change of the program that the ranks on one machine run, from the request to its answer (actors/supervisor_program.hpp).
struct program_trial {
  enum class stage : std::uint8_t { waiting, pausing, starting, proving, undoing };

  stage now = stage::waiting;
  node_number machine = this_machine;
  program_number program = 0, before = 0;
  std::chrono::milliseconds start_deadline{};
  std::uint64_t begin_by_ns = 0; // waiting: until then
  bool undo = false;             // of an earlier change
  std::int32_t ranks = 0;        // of the group on the machine, when it paused
  std::uint64_t paused_at_ns = 0;
  std::uint64_t paused_ns = 0; // 0: not up again yet
  std::string failure;         // undoing: why
  int losses = 0;              // while it was proving
  std::uint64_t steps = 0;     // of the group when it began to prove
  bool returned = false;       // undoing: the program of before was started
  caf::typed_response_promise<program_changed> answer;
};

struct supervisor_state {
  static constexpr const char* name = "supervisor";
  enum class phase : std::uint8_t { waiting, starting, up, doubtful, retiring, failed, stopping };

  shared_state shared;
  std::int32_t replica = 0;
  core_actors core;
  first_start first; // null once told
  phase now = phase::starting;
  generation_number generation = 0;
  std::vector<rank_seat> seats;
  std::optional<std::string> rendezvous; // what rank 0 published
  std::optional<executor_info> info;     // of the group when it was first formed
  std::uint64_t completed = 0;           // steps of the group, when it was last lost
  bool was_up = false;                   // the current group was ready once
  bool kv_usable = false;                // the last group that was up ended without a fault
  int failed_starts = 0;                 // in a row
  registrar_actor registrar;             // children watch it; published while they are expected
  std::vector<standby_seat> standbys;    // by rank, or none
  std::uint64_t standbys_made = 0;
  std::map<node_number, program_number> programs; // that ranks run, by machine; none: 0
  std::optional<program_trial> change;            // of one of them, while that is under way
  std::optional<restart_policy> policy;
  std::string loss;                // why the group was lost last
  std::uint64_t losses = 0;        // of groups that were up
  std::int32_t slots_seen = -1;    // when it was last said that they are too few
  bool by_order = false;           // the group pauses, or is ended, for a node to leave: no loss
  std::uint16_t port = 0;          // of the registrar; 0: it is not open
  bool moving = false;             // the timer of this loss runs that moves requests to another replica
  std::set<caf::actor_addr> alive; // devices in this process that have not ended, abandoned ones included

  bool network() const { return !shared->options.worker_command.empty(); }
};

// Must be detached: it waits for children and sockets.
supervisor_actor::behavior_type run_supervisor(actor_pointer<supervisor_actor, supervisor_state> self, shared_state shared,
                                               std::int32_t replica, core_actors core, first_start first);

} // namespace troupe::actors
