#include "actors/upgrade_actor.hpp"

#include <caf/actor_cast.hpp>
#include <caf/stateful_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <utility>

namespace troupe::actors {

namespace {

using self_pointer = actor_pointer<upgrade_actor, upgrade_state>;

void begin(self_pointer self);
void change_next(self_pointer self);
void undo_next(self_pointer self);

void note(self_pointer self, const upgrade_state::job& job, std::string text) {
  self->send(job.asker, upgrade_note{job.order.machine, std::move(text)});
}

std::string prefix(const upgrade_state& s) { return s.shared->replica_prefix(static_cast<std::int32_t>(s.replica)); }

// The supervisor answers when it is true: it keeps the deadlines.
void ask(self_pointer self, const program_change& wanted, void (*then)(self_pointer, const program_changed& how)) {
  auto& s = self->state;
  self->request(s.supervisors[s.replica], caf::infinite, wanted)
      .then([self, then](const program_changed& how) { then(self, how); },
            [self, then](const caf::error&) {
              then(self, {server_is_stopping, 0, 0}); // a supervisor ends for nothing else
            });
}

void finish(self_pointer self) {
  auto& s = self->state;
  const auto job = std::move(s.jobs.front());
  s.jobs.pop_front();
  if (!s.failure.empty() && s.failure != server_is_stopping) {
    s.failure += s.all_undone ? "; the ranks run the program of before" : "; the other ranks run the program of before";
  }
  self->send(job.asker, upgrade_end{job.order.machine, s.failure});
  if (!s.jobs.empty()) begin(self);
}

void has_changed(self_pointer self, const program_changed& how) {
  auto& s = self->state;
  if (!how.failure.empty()) {
    s.failure = how.failure;
    return undo_next(self);
  }
  note(self, s.jobs.front(),
       prefix(s) + (how.ranks > 0 ? "changed after a pause of " + std::to_string(how.paused_ns / 1'000'000) + " ms"
                                  : "no rank runs there now; those that come run the new program, which has shown nothing yet"));
  ++s.replica;
  change_next(self);
}

void change_next(self_pointer self) {
  auto& s = self->state;
  const machine_upgrade& order = s.jobs.front().order;
  if (s.replica == s.supervisors.size()) return finish(self);
  ask(self, {order.machine, order.program, order.start_deadline_ms, false}, has_changed);
}

void has_changed_back(self_pointer self, const program_changed& how) {
  auto& s = self->state;
  note(self, s.jobs.front(), prefix(s) + (how.failure.empty() ? "changed back" : "not changed back: " + how.failure));
  if (!how.failure.empty() && s.failure != server_is_stopping) {
    s.failure += "; " + prefix(s) + "not changed back: " + how.failure;
    s.all_undone = false;
  }
  undo_next(self);
}

void undo_next(self_pointer self) {
  auto& s = self->state;
  if (s.replica == 0) return finish(self);
  --s.replica;
  const machine_upgrade& order = s.jobs.front().order;
  ask(self, {order.machine, order.before, s.shared->options.start_deadline.count(), true}, has_changed_back);
}

void begin(self_pointer self) {
  auto& s = self->state;
  s.replica = 0;
  s.failure.clear();
  s.all_undone = true;
  change_next(self);
}

void take(self_pointer self, const machine_upgrade& order) {
  auto& s = self->state;
  upgrade_state::job job{order, caf::actor_cast<upgrade_listener>(self->current_sender())};
  if (order.start_deadline_ms < 1 || order.start_deadline_ms > longest_start_deadline.count()) {
    return self->send(job.asker,
                      upgrade_end{order.machine, "the deadline of a start is 1 ms to " + std::to_string(longest_start_deadline.count()) +
                                                     " ms, not " + std::to_string(order.start_deadline_ms) + " ms"});
  }
  if (!s.jobs.empty()) note(self, job, "waits: the program of " + s.jobs.front().order.who + " is being changed");
  s.jobs.push_back(std::move(job));
  if (s.jobs.size() == 1) begin(self);
}

void call_off(self_pointer self, node_number machine) {
  auto& jobs = self->state.jobs;
  for (std::size_t i = jobs.size(); i-- > 1;) { // the first is under way
    if (jobs[i].order.machine != machine) continue;
    self->send(jobs[i].asker, upgrade_end{machine, "the node is leaving the cluster"});
    jobs.erase(jobs.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

} // namespace

upgrade_actor::behavior_type run_upgrades(self_pointer self, shared_state shared, std::vector<supervisor_actor> supervisors) {
  self->state.shared = std::move(shared);
  self->state.supervisors = std::move(supervisors);
  return {
      [self](const machine_upgrade& order) { take(self, order); },
      [self](caf::leave_atom, node_number machine) { call_off(self, machine); },
  };
}

} // namespace troupe::actors
