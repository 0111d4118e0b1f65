// Starts the device, watches it and the other actors, replaces a lost device, and gives up when devices are lost too often.
//
//   starting --device_ready--> up --suspect--> retiring --ended--> starting ...        (restart intensity allowing, else failed)
//   up --hung up (child)--> doubtful --ended--> starting, --still there--> retiring
//
// A device is told to go before the next one starts; one that does not go in time is abandoned (a thread cannot be killed, a process can).
#pragma once

#include <future>
#include <memory>
#include <set>
#include <string>

#include "actors/actor_pointer.hpp"
#include "actors/child_process.hpp"
#include "actors/protocol.hpp"
#include "actors/restart_policy.hpp"
#include "actors/serving_state.hpp"

namespace troupe::actors {

struct core_actors {
  gateway_actor gateway;
  scheduler_actor scheduler;
  detokenizer_actor detokenizer;
};

// How the first start went: a value, a load_error or a std::runtime_error.
using first_start = std::shared_ptr<std::promise<executor_info>>;

struct supervisor_state {
  static constexpr const char* name = "supervisor";
  enum class phase : std::uint8_t { starting, up, doubtful, retiring, failed, stopping };

  shared_state shared;
  core_actors core;
  first_start first; // null once told
  phase now = phase::starting;
  device_number number = 0;
  std::string token;                 // of the device that is being started
  device_actor device;               // null before it is ready
  std::optional<executor_info> info; // of the first device; the others must be the same
  std::uint64_t completed = 0;       // steps of all devices, when the last one was lost
  bool was_up = false;               // the current device was ready once
  int failed_starts = 0;             // in a row
  std::unique_ptr<child_process> child;
  registrar_actor registrar; // a child watches it; published while the child is expected
  std::optional<restart_policy> policy;
  std::string loss;                // why the last device was lost
  caf::actor_addr leaving;         // the device in this process that was told to go
  std::set<caf::actor_addr> alive; // devices in this process that have not ended, abandoned ones included
  bool network() const { return !shared->options.worker_command.empty(); }
};

// Must be detached: it waits for children and sockets.
supervisor_actor::behavior_type run_supervisor(actor_pointer<supervisor_actor, supervisor_state> self, shared_state shared,
                                               core_actors core, first_start first);

} // namespace troupe::actors
