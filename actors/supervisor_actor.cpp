#include "actors/supervisor_actor.hpp"

#include <sys/wait.h>

#include <algorithm>
#include <caf/exit_reason.hpp>
#include <caf/stateful_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <chrono>
#include <csignal>
#include <utility>

#include "actors/slot_board.hpp"
#include "actors/supervisor_end.hpp"
#include "actors/supervisor_program.hpp"
#include "actors/supervisor_seats.hpp"
#include "actors/supervisor_standby.hpp"
#include "actors/supervisor_start.hpp"

namespace troupe::actors {

namespace {

using self_pointer = supervisor_pointer;
using phase = supervisor_state::phase;

constexpr std::chrono::milliseconds kCauseGrace{250}; // from a broken connection to the exit of a child that died
constexpr std::chrono::milliseconds kEndGrace{2000};  // for a device in this process to finish its step

// -- losing and replacing a group -------------------------------------------------------------------------------------------------

void replace_group(self_pointer self) {
  auto& s = self->state;
  const bool by_order = std::exchange(s.by_order, false);
  if (program_is_changing(s) || program_returns(s) || by_order) return start_group(self);
  // Barren: it had work and completed no step of it, or it never came up. An idle group may be killed as often as one likes.
  const std::uint64_t steps = s.shared->health.steps(s.replica);
  const bool barren = steps == s.completed && (!s.was_up || s.shared->registry.load(s.replica) > 0);
  s.completed = steps;
  if (!s.policy->allow(now_ns(), barren)) {
    if (program_meets_end(s, s.loss)) return start_group(self);
    return give_up(self, "the device was lost too often, at last because: " + s.loss);
  }
  s.shared->parts.metrics->group_restarted(s.replica);
  start_group(self);
}

// Nothing is planned for the group any more, and its requests may have to go elsewhere.
void part_with_group(supervisor_state& s) {
  s.shared->health.group_up(s.replica, false);
  ++s.losses;
  s.moving = false;
}

// What follows comes with the end of the last rank.
void retire(self_pointer self, void (*dismiss)(self_pointer)) {
  auto& s = self->state;
  move_requests_later(self);
  s.now = phase::retiring;
  dismiss(self);
  if (all_ended(s)) return replace_group(self);
  set_timer(self, group_wait::end, kEndGrace);
}

void lose(self_pointer self, std::string reason, loss_cause cause) {
  auto& s = self->state;
  s.loss = std::move(reason);
  s.by_order = false;
  s.shared->log(replica_prefix(s) + "device lost: " + s.loss);
  self->send(s.core.scheduler, detach_group{s.generation, cause});
  s.kv_usable = cause == loss_cause::killed;
  if (cause != loss_cause::killed) dismiss_standbys(s);
  program_meets_loss(self, s.loss, cause);
  part_with_group(s);
  retire(self, dismiss_ranks);
}

// No step is in flight: the ranks may take their leave.
void group_has_paused(self_pointer self, const group_paused& paused) {
  auto& s = self->state;
  if (paused.generation != s.generation || s.now != phase::up) return;
  const bool for_program = program_meets_pause(self); // one pause serves a change and a node that leaves
  if (!for_program && !s.by_order) return;
  part_with_group(s);
  s.kv_usable = true;
  retire(self, release_ranks);
  if (s.shared->slots && !s.shared->slots->could_claim(s.replica)) offer_requests(self); // it will not be back at once
}

// The group is lost, but not known is by whose fault.
void doubt(self_pointer self, std::string reason) {
  auto& s = self->state;
  s.now = phase::doubtful;
  s.loss = std::move(reason);
  set_timer(self, group_wait::cause, kCauseGrace);
}

// -- events -----------------------------------------------------------------------------------------------------------------------

void group_is_suspect(self_pointer self, const group_suspect& suspect) {
  auto& s = self->state;
  if (suspect.generation != s.generation || (s.now != phase::up && s.now != phase::doubtful)) return;
  if (!suspect.by_peer) return lose(self, suspect.reason, loss_cause::fault);
  if (s.now == phase::up) doubt(self, suspect.reason);
}

void child_has_exited(self_pointer self, const child_changed& exited) {
  auto& s = self->state;
  reap(s, exited.rank);
  const std::string how = rank_name(s, exited.rank) + "the device process ended with " + describe_status(exited.status);
  // SIGKILL and SIGTERM come from outside, and a child that lost contact leaves with 0; anything else may be a request's doing.
  const bool outside = exited.status == 0 || exited.status == SIGKILL || exited.status == SIGTERM;
  if (s.now == phase::starting) return start_has_failed(self, {{}, how + " before it was ready", false});
  if (s.now == phase::up || s.now == phase::doubtful) return lose(self, how, outside ? loss_cause::killed : loss_cause::fault);
  if (s.now == phase::retiring && all_ended(s)) replace_group(self);
}

void child_has_changed(self_pointer self, const child_changed& changed) {
  auto& s = self->state;
  const rank_seat* const seat = s.seats.empty() ? nullptr : &s.seats[static_cast<std::size_t>(changed.rank)];
  if (seat == nullptr || seat->started_as != changed.generation || seat->child == nullptr) {
    standby_has_changed(self, changed);
    return;
  }
  if (!WIFSTOPPED(changed.status)) return child_has_exited(self, changed);
  // Before it has said hello nothing else would tell that it is frozen; later its silence does.
  if (s.now == phase::starting) start_has_failed(self, {{}, rank_name(s, changed.rank) + "the device process was stopped", false});
}

void worker_has_changed(self_pointer self, const worker_changed& news) {
  auto& s = self->state;
  if (news.reason.empty()) return child_has_changed(self, {news.generation, news.rank, news.status});
  if (news.generation != s.generation || s.now != phase::starting) return;
  start_has_failed(self, {{}, rank_name(s, news.rank) + news.reason, false}, true);
}

// -- nodes ------------------------------------------------------------------------------------------------------------------------

void node_is_lost(self_pointer self, const node_change& change) {
  auto& s = self->state;
  program_meets_lost_node(self, change);
  if (ranks_on(s, change.node) == 0) return;
  drop_ranks_on(s, change.node);
  const std::string reason = "node " + change.name + " is lost";
  if (s.now == phase::starting) return start_has_failed(self, {{}, reason, false}, true);
  if (s.now == phase::up || s.now == phase::doubtful) return lose(self, reason, loss_cause::killed);
  if (s.now == phase::retiring && all_ended(s)) replace_group(self);
}

// A group leaves a node when it can start anew elsewhere, or its requests can go on at another replica; else it stays as long as the node
// does.
void leave_nodes(self_pointer self) {
  auto& s = self->state;
  if (s.by_order || (s.now != phase::starting && s.now != phase::up)) return; // what is lost is placed elsewhere anyway
  const slot_board& slots = *s.shared->slots;
  const bool must = std::any_of(s.seats.begin(), s.seats.end(), [&](const rank_seat& x) { return slots.is_leaving(x.where.node); });
  if (!must) return;
  const bool room = slots.could_claim(s.replica);
  if (!room && !s.shared->health.other_is_up(s.replica)) {
    s.shared->log(replica_prefix(s) + "its node wants to leave, but no other slots are free and no other replica is up: it goes on there");
    return;
  }
  if (s.now == phase::starting) { // that is nobody's failure, a new program's least of all
    s.shared->inform(replica_prefix(s) + "starts elsewhere: its node leaves");
    return start_group(self);
  }
  s.by_order = true;
  s.shared->inform(replica_prefix(s) + "moves: its node leaves");
  self->send(s.core.scheduler, pause_group{s.generation});
}

void node_has_changed(self_pointer self, const node_change& change) {
  if (change.what == node_event::lost) return node_is_lost(self, change);
  if (change.what == node_event::joined && self->state.now == phase::waiting) return start_group(self);
  leave_nodes(self);
}

caf::typed_response_promise<program_changed> change_program(self_pointer self, const program_change& wanted) {
  auto answer = ask_for_program(self, wanted);
  if (wanted.undo && program_undoes_start(self->state)) start_group(self);
  return answer;
}

void device_has_hung_up(self_pointer self, const rank_seat& seat) {
  auto& s = self->state;
  const auto rank = static_cast<std::int32_t>(&seat - s.seats.data());
  if (s.network()) {
    if (s.now == phase::up) return doubt(self, rank_name(s, rank) + "the device process does not answer");
    if (s.now == phase::starting) set_timer(self, group_wait::cause, kCauseGrace);
    return;
  }
  if (s.now == phase::up || s.now == phase::doubtful) lose(self, rank_name(s, rank) + "the device actor ended", loss_cause::fault);
}

// The next start is with processes of its own.
void standby_should_have_answered(self_pointer self) {
  const auto& s = self->state;
  if (const auto rank = silent_standby(s)) start_has_failed(self, {{}, rank_name(s, *rank) + "the standby process does not answer", false});
}

void wait_is_over(self_pointer self, const group_timeout& over) {
  auto& s = self->state;
  if (over.wait == group_wait::move) return move_time_is_over(self, over.losses);
  if (over.wait == group_wait::begin) return begin_time_is_over(self);
  if (over.generation != s.generation) return;
  if (over.wait == group_wait::proof) return proof_is_over(self);
  if (over.wait == group_wait::standby) return standby_time_is_over(self);
  if (over.wait == group_wait::answer && s.now == phase::starting) return standby_should_have_answered(self);
  if (over.wait == group_wait::start && s.now == phase::starting) {
    start_has_failed(self, {{}, "the device was not ready within " + std::to_string(start_deadline_of(s).count()) + " ms", false});
  } else if (over.wait == group_wait::places && s.now == phase::waiting) {
    start_group(self);
  } else if (over.wait == group_wait::cause && s.now == phase::starting) {
    start_has_failed(self, {{}, "a device process does not answer", false});
  } else if (over.wait == group_wait::cause && s.now == phase::doubtful) {
    lose(self, s.loss, loss_cause::killed); // frozen or cut off: no request does that
  } else if ((over.wait == group_wait::end || over.wait == group_wait::retry) && s.now == phase::retiring) {
    replace_group(self);
  }
}

void stop_if_alone(self_pointer self) {
  if (self->state.now == phase::stopping && self->state.alive.empty()) self->quit(caf::exit_reason::user_shutdown);
}

void stop(self_pointer self) {
  auto& s = self->state;
  s.now = phase::stopping;
  clear_seats(self);
  end_standbys(s);
  fail_start(self, {{}, "stopped", false});
  end_change(self, server_is_stopping);
  for (const auto& address : s.alive) self->send_exit(address, caf::exit_reason::kill);
  stop_if_alone(self);
}

void actor_is_down(self_pointer self, const caf::down_msg& down) {
  auto& s = self->state;
  if (core_actor_ended(self, down.source)) return;
  s.alive.erase(down.source);
  if (s.now == phase::stopping) return stop_if_alone(self);
  const auto seat = std::find_if(s.seats.begin(), s.seats.end(), [&](const rank_seat& x) { return x.address == down.source; });
  if (seat == s.seats.end()) return;
  if (s.now == phase::retiring && !s.network() && all_ended(s)) return replace_group(self);
  device_has_hung_up(self, *seat);
}

} // namespace

supervisor_actor::behavior_type run_supervisor(self_pointer self, shared_state shared, std::int32_t replica, core_actors core,
                                               first_start first) {
  auto& s = self->state;
  s.policy.emplace(shared->options.max_restarts, shared->options.restart_period);
  s.shared = std::move(shared);
  s.replica = replica;
  s.core = std::move(core);
  s.first = std::move(first);
  self->set_down_handler([self](caf::scheduled_actor*, caf::down_msg& down) { actor_is_down(self, down); });
  self->monitor(s.core.gateway);
  self->monitor(s.core.scheduler);
  self->monitor(s.core.detokenizer);
  if (s.core.cluster) self->monitor(s.core.cluster);
  start_group(self);
  return {
      [self](const device_hello& hello) { device_is_there(self, hello); },
      [self](const group_rendezvous& at) { rendezvous_is_known(self, at); },
      [self](const device_ready& ready) { device_is_ready(self, ready); },
      [self](const device_start_failed& failed) { device_did_not_start(self, failed); },
      [self](const group_suspect& suspect) { group_is_suspect(self, suspect); },
      [self](const child_changed& changed) { child_has_changed(self, changed); },
      [self](const worker_changed& news) { worker_has_changed(self, news); },
      [self](const node_change& change) { node_has_changed(self, change); },
      [self](const group_timeout& over) { wait_is_over(self, over); },
      [self](const group_paused& paused) { group_has_paused(self, paused); },
      [self](const program_change& wanted) { return change_program(self, wanted); },
      [self](caf::close_atom) { stop(self); },
  };
}

} // namespace troupe::actors
