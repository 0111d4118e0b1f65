#include "actors/supervisor_program.hpp"

#include <caf/send.hpp>
#include <caf/stateful_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <cstdio>
#include <utility>

#include "actors/supervisor_end.hpp"

namespace troupe::actors {

namespace {

using self_pointer = supervisor_pointer;
using stage = program_trial::stage;

constexpr std::chrono::milliseconds kProof{2000}; // so long a group of a new program must last without a fault of its own

std::optional<std::string> hindrance(const supervisor_state& s) {
  if (!s.network()) return "the devices live in the serving process; with --isolate-devices they have processes of their own";
  if (s.shared->cluster)
    return "ranks of a cluster change their program with their node: start one of the new program, then drain the old one";
  if (s.change) return "another change of the program is under way";
  if (s.now == supervisor_state::phase::failed) return replica_prefix(s) + "the group was given up";
  if (s.now == supervisor_state::phase::stopping) return "the server is stopping";
  return std::nullopt;
}

void undo(supervisor_state& s, const std::string& reason) {
  s.change->now = stage::undoing;
  s.change->failure = replica_prefix(s) + reason;
  s.program = s.change->before;
  s.shared->log(replica_prefix(s) + "the new program failed: " + reason + "; back to the one before");
}

void pause(self_pointer self) {
  auto& s = self->state;
  s.change->now = stage::pausing;
  s.change->paused_at_ns = now_ns();
  self->send(s.core.scheduler, pause_group{s.generation});
}

void prove(self_pointer self) {
  auto& s = self->state;
  program_trial& change = *s.change;
  if (change.paused_ns == 0) {
    change.paused_ns = now_ns() - change.paused_at_ns;
    char line[64];
    std::snprintf(line, sizeof line, "the new program runs after a pause of %.3f s", static_cast<double>(change.paused_ns) / 1e9);
    s.shared->log(replica_prefix(s) + line);
  }
  change.now = stage::proving;
  self->delayed_send(self, kProof, group_timeout{s.generation, group_wait::proof, s.losses});
}

} // namespace

caf::typed_response_promise<program_changed> ask_for_program(self_pointer self, const program_change& wanted) {
  auto& s = self->state;
  auto answer = self->make_response_promise<program_changed>();
  if (auto reason = hindrance(s)) {
    answer.deliver(program_changed{std::move(*reason), 0});
    return answer;
  }
  s.change.emplace();
  s.change->program = wanted.program;
  s.change->start_deadline = std::chrono::milliseconds(wanted.start_deadline_ms);
  s.change->answer = answer;
  if (s.now == supervisor_state::phase::up) pause(self);
  return answer;
}

void program_meets_group(self_pointer self) {
  auto& s = self->state;
  if (!s.change) return;
  if (s.change->now == stage::waiting) return pause(self);
  if (s.change->now == stage::undoing) return end_change(self, s.change->failure);
  prove(self);
}

bool program_meets_pause(self_pointer self) {
  auto& s = self->state;
  if (!s.change || s.change->now != stage::pausing) return false;
  s.change->now = stage::starting;
  s.change->before = std::exchange(s.program, s.change->program);
  return true;
}

void program_meets_loss(self_pointer self, const std::string& reason, loss_cause cause) {
  auto& s = self->state;
  if (!s.change) return;
  if (s.change->now == stage::pausing) s.change->now = stage::waiting;
  if (s.change->now == stage::proving && (++s.change->losses > 1 || cause == loss_cause::fault)) undo(s, reason);
}

bool program_meets_failed_start(self_pointer self, const std::string& reason) {
  auto& s = self->state;
  if (!s.change || s.change->now != stage::starting) return false;
  undo(s, reason);
  return true;
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

void proof_is_over(self_pointer self) {
  auto& s = self->state;
  if (s.change && s.change->now == stage::proving && s.now == supervisor_state::phase::up) end_change(self, {});
}

void end_change(self_pointer self, const std::string& failure) {
  auto& s = self->state;
  if (!s.change) return;
  s.change->answer.deliver(program_changed{failure, s.change->paused_ns});
  s.change.reset();
}

std::chrono::milliseconds start_deadline_of(const supervisor_state& s) {
  return program_is_changing(s) ? s.change->start_deadline : s.shared->options.start_deadline;
}

} // namespace troupe::actors
