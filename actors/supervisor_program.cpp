#include "actors/supervisor_program.hpp"

#include <caf/send.hpp>
#include <caf/stateful_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <cstdio>
#include <utility>

#include "actors/slot_board.hpp"
#include "actors/supervisor_end.hpp"
#include "actors/supervisor_seats.hpp"

namespace troupe::actors {

namespace {

using self_pointer = supervisor_pointer;
using stage = program_trial::stage;

constexpr std::chrono::milliseconds kProof{2000}; // so long a group of a new program must last without a fault of its own

std::optional<std::string> hindrance(const supervisor_state& s, const program_change& wanted) {
  if (s.shared->slots && !s.shared->slots->has(wanted.machine)) return "the node is gone";
  if (s.change) return "another change of the program is under way";
  if (s.now == supervisor_state::phase::failed) return replica_prefix(s) + "the group was given up";
  if (s.now == supervisor_state::phase::stopping) return server_is_stopping;
  return std::nullopt;
}

void undo(supervisor_state& s, const std::string& reason) {
  s.change->now = stage::undoing;
  s.change->failure = replica_prefix(s) + reason;
  s.programs[s.change->machine] = s.change->before;
  s.shared->log(replica_prefix(s) + "the new program failed: " + reason + "; back to the one before");
}

// The group is up.
void begin(self_pointer self) {
  auto& s = self->state;
  program_trial& change = *s.change;
  change.ranks = ranks_on(s, change.machine);
  if (change.ranks == 0) {
    s.programs[change.machine] = change.program;
    return end_change(self, {});
  }
  if (s.shared->slots && !s.shared->slots->could_claim(s.replica)) {
    return end_change(self, replica_prefix(s) + "a machine of the group wants to leave, and there are no other slots to come back to");
  }
  change.now = stage::pausing;
  change.paused_at_ns = now_ns();
  self->send(s.core.scheduler, pause_group{s.generation});
}

// Whoever starts from now on runs that program; who runs the other makes way for it, if the group can come back.
void change_back(self_pointer self) {
  auto& s = self->state;
  program_trial& change = *s.change;
  change.ranks = ranks_on(s, change.machine);
  s.programs[change.machine] = change.program;
  if (s.now == supervisor_state::phase::starting && change.ranks > 0) {
    change.now = stage::undoing;
    return; // the start begins anew
  }
  if (s.now != supervisor_state::phase::up || change.ranks == 0) return end_change(self, {});
  if (s.shared->slots && !s.shared->slots->could_claim(s.replica)) {
    return end_change(self, "a machine of the group wants to leave, and there are no other slots: until then it runs the new program");
  }
  change.now = stage::pausing;
  self->send(s.core.scheduler, pause_group{s.generation});
}

void prove(self_pointer self) {
  auto& s = self->state;
  program_trial& change = *s.change;
  if (change.paused_ns == 0) {
    change.paused_ns = now_ns() - change.paused_at_ns;
    char line[64];
    std::snprintf(line, sizeof line, "the new program runs after a pause of %.3f s", static_cast<double>(change.paused_ns) / 1e9);
    s.shared->inform(replica_prefix(s) + line);
  }
  change.ranks = ranks_on(s, change.machine); // the group may have started elsewhere
  change.now = stage::proving;
  change.steps = s.shared->health.steps(s.replica);
  set_timer(self, group_wait::proof, kProof);
}

} // namespace

caf::typed_response_promise<program_changed> ask_for_program(self_pointer self, const program_change& wanted) {
  auto& s = self->state;
  auto answer = self->make_response_promise<program_changed>();
  if (auto reason = hindrance(s, wanted)) {
    answer.deliver(program_changed{std::move(*reason), 0, 0});
    return answer;
  }
  const std::chrono::milliseconds deadline(wanted.start_deadline_ms);
  s.change.emplace();
  s.change->machine = wanted.machine;
  s.change->program = wanted.program;
  s.change->start_deadline = deadline;
  s.change->begin_by_ns = now_ns() + static_cast<std::uint64_t>(std::chrono::nanoseconds(deadline).count());
  s.change->answer = answer;
  s.change->undo = wanted.undo;
  if (wanted.undo) {
    change_back(self);
    return answer;
  }
  set_timer(self, group_wait::begin, deadline);
  if (s.now == supervisor_state::phase::up) begin(self);
  return answer;
}

void program_meets_group(self_pointer self) {
  auto& s = self->state;
  if (!s.change) return;
  if (s.change->now == stage::waiting) return begin(self);
  if (s.change->now == stage::undoing) return end_change(self, s.change->failure);
  prove(self);
}

bool program_meets_pause(self_pointer self) {
  auto& s = self->state;
  if (!s.change || s.change->now != stage::pausing) return false;
  if (s.change->undo) {
    s.change->now = stage::undoing;
    return true;
  }
  s.change->now = stage::starting;
  s.change->before = std::exchange(s.programs[s.change->machine], s.change->program);
  return true;
}

void program_meets_loss(self_pointer self, const std::string& reason, loss_cause cause) {
  auto& s = self->state;
  if (!s.change) return;
  if (s.change->now == stage::pausing) {
    if (s.change->undo) return end_change(self, {}); // those that come run it
    s.change->now = stage::waiting;
    begin_time_is_over(self);
    return;
  }
  if (s.change->now == stage::proving && (++s.change->losses > 1 || cause == loss_cause::fault)) undo(s, reason);
}

bool program_meets_failed_start(self_pointer self, const std::string& reason) {
  auto& s = self->state;
  if (!s.change || (s.change->now != stage::starting && s.change->now != stage::proving)) return false;
  undo(s, reason);
  return true;
}

void program_meets_no_places(self_pointer self) {
  auto& s = self->state;
  if (!s.change || s.change->now == stage::waiting) return;
  if (s.change->now != stage::undoing) undo(s, "too few slots are free for the group to come back");
  end_change(self, s.change->failure);
}

void program_meets_lost_node(self_pointer self, const node_change& lost) {
  auto& s = self->state;
  s.programs.erase(lost.node);
  if (s.change && s.change->machine == lost.node) end_change(self, "node " + lost.name + " is lost");
}

bool program_undoes_start(const supervisor_state& s) {
  return s.change && s.change->now == stage::undoing && s.now == supervisor_state::phase::starting;
}

bool program_is_changing(const supervisor_state& s) { return s.change && s.change->now == stage::starting; }

bool program_returns(supervisor_state& s) {
  return s.change && s.change->now == stage::undoing && !std::exchange(s.change->returned, true);
}

bool program_meets_end(supervisor_state& s, const std::string& reason) {
  if (!s.change || s.change->now != stage::proving) return false;
  undo(s, reason);
  return program_returns(s);
}

void begin_time_is_over(self_pointer self) {
  auto& s = self->state;
  if (!s.change || s.change->now != stage::waiting || now_ns() < s.change->begin_by_ns) return;
  end_change(self, replica_prefix(s) + "the group was not up within " + std::to_string(s.change->start_deadline.count()) +
                       " ms, so that no other program could begin");
}

void proof_is_over(self_pointer self) {
  auto& s = self->state;
  if (!s.change || s.change->now != stage::proving || s.now != supervisor_state::phase::up) return;
  const bool idle = s.shared->registry.load(s.replica) == 0;
  if (!idle && s.shared->health.steps(s.replica) == s.change->steps) return set_timer(self, group_wait::proof, kProof);
  end_change(self, {});
}

void end_change(self_pointer self, const std::string& failure) {
  auto& s = self->state;
  if (!s.change) return;
  s.change->answer.deliver(program_changed{failure, s.change->paused_ns, s.change->ranks});
  s.change.reset();
}

std::chrono::milliseconds start_deadline_of(const supervisor_state& s) {
  return program_is_changing(s) ? s.change->start_deadline : s.shared->options.start_deadline;
}

} // namespace troupe::actors
