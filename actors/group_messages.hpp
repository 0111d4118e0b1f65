// What is said of the groups of ranks: their steps, starts, losses and pauses. Part of protocol.hpp.
#pragma once

#include <caf/meta/type_name.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "actors/inspect.hpp"
#include "actors/serving.hpp"
#include "scheduler/scheduler.hpp"

namespace troupe::actors {

// Counts a group's formations, from 1: a message about an earlier one is ignored.
using generation_number = std::uint64_t;

// -- scheduler --------------------------------------------------------------------------------------------------------------------

// A rank's answer to a plan.
struct step_done {
  std::int32_t rank = 0;
  step_result result;
};

struct step_failed {
  epoch_number epoch = 0;
  std::int32_t rank = 0;
  std::string reason;
  bool by_peer = false; // this and the next as in step_failure
  std::optional<collective_fault> collective;
};

// Its state is gone; what it was working on goes back to the queue.
struct detach_group {
  generation_number generation = 0;
  loss_cause cause = loss_cause::fault;
};

// -- supervisor -------------------------------------------------------------------------------------------------------------------

// A device introduces itself and is told which rank it is; `token` proves that it is the one that was started for it.
struct device_hello {
  std::string token;
};

// Rank 0 says where the others find it.
struct group_rendezvous {
  std::string token;
  std::string text;
};

struct device_ready {
  std::string token;
  executor_info info;
  bool kv_kept = false; // as of step_executor
};

struct device_start_failed {
  std::string token;
  std::string reason;
  bool bad_checkpoint = false; // a load_error: starting again will not help
};

// The scheduler has given a group up; `by_peer`: it waits to be told why, and detaches then.
struct group_suspect {
  generation_number generation = 0;
  std::string reason;
  bool by_peer = false;
};

// No plan is made any more; the group is let go once all that were made are done.
struct pause_group {
  generation_number generation = 0;
};

struct group_paused {
  generation_number generation = 0;
};

// The child process of a rank was stopped, or has ended (it is not reaped yet).
struct child_changed {
  generation_number generation = 0;
  std::int32_t rank = 0;
  std::int32_t status = 0; // as of waitpid
};

// What the supervisor waits for, with a limit.
enum class group_wait : std::uint8_t {
  start,   // of all ranks
  cause,   // of a loss: a child that hung up was killed, or is frozen; a rank that waited in vain did so for another
  end,     // of ranks that were told to go
  retry,   // a start failed: before the next
  move,    // of requests: the group is not back
  places,  // for the ranks: too few slots are free
  begin,   // of a change of the program: the group is not up
  proof,   // of a new program: the group has lasted
  standby, // the next processes that stand by
  answer   // of a standby that was called
};

struct group_timeout {
  generation_number generation = 0;
  group_wait wait = group_wait::start;
  std::uint64_t losses = 0; // of the group when it was set
};

// -- inspect ----------------------------------------------------------------------------------------------------------------------

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, rank_start& x) {
  auto num_blocks = wire::to_pair(x.num_blocks);
  return f(caf::meta::type_name("rank_start"), x.replica, x.rank, x.size, x.generation, x.rendezvous, num_blocks, x.kv_usable,
           wire::after_load([&] { x.num_blocks = wire::to_optional(num_blocks); }));
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, step_done& x) {
  return f(caf::meta::type_name("step_done"), x.rank, x.result);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, step_failed& x) {
  auto collective = wire::to_pair(x.collective);
  return f(caf::meta::type_name("step_failed"), x.epoch, x.rank, x.reason, x.by_peer, collective,
           wire::after_load([&] { x.collective = wire::to_optional(collective); }));
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, detach_group& x) {
  return f(caf::meta::type_name("detach_group"), x.generation, x.cause);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, device_hello& x) {
  return f(caf::meta::type_name("device_hello"), x.token);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, group_rendezvous& x) {
  return f(caf::meta::type_name("group_rendezvous"), x.token, x.text);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, device_ready& x) {
  return f(caf::meta::type_name("device_ready"), x.token, x.info, x.kv_kept);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, device_start_failed& x) {
  return f(caf::meta::type_name("device_start_failed"), x.token, x.reason, x.bad_checkpoint);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, group_suspect& x) {
  return f(caf::meta::type_name("group_suspect"), x.generation, x.reason, x.by_peer);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, pause_group& x) {
  return f(caf::meta::type_name("pause_group"), x.generation);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, group_paused& x) {
  return f(caf::meta::type_name("group_paused"), x.generation);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, child_changed& x) {
  return f(caf::meta::type_name("child_changed"), x.generation, x.rank, x.status);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, group_timeout& x) {
  return f(caf::meta::type_name("group_timeout"), x.generation, x.wait, x.losses);
}

} // namespace troupe::actors
