#include "actors/supervisor_end.hpp"

#include <caf/stateful_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <exception>
#include <utility>

#include "actors/slot_board.hpp"
#include "actors/supervisor_program.hpp"
#include "actors/supervisor_seats.hpp"
#include "actors/supervisor_standby.hpp"

namespace troupe::actors {

namespace {

using self_pointer = supervisor_pointer;
using phase = supervisor_state::phase;

void end_requests(serving_state& shared, bool in_engine, const error& reason) {
  for (const request_id id : shared.registry.ids(in_engine)) end_with_error(shared, id, reason);
}

// The whole serving side can do no more.
void end_everything(self_pointer self) {
  auto& s = self->state;
  s.shared->parts.metrics->set_ready(false);
  self->send(s.core.gateway, end_all{s.shared->health.refusal()}); // which passes it on
}

} // namespace

std::string replica_prefix(const supervisor_state& s) { return s.shared->replica_prefix(s.replica); }

void move_requests_later(self_pointer self) {
  auto& s = self->state;
  if (s.shared->options.replicas > 1 && !std::exchange(s.moving, true)) set_timer(self, group_wait::move, s.shared->options.move_after);
}

void offer_requests(self_pointer self) {
  auto& s = self->state;
  if (s.shared->health.other_is_up(s.replica)) self->send(s.core.scheduler, caf::migrate_atom::value, s.core.gateway);
}

void move_time_is_over(self_pointer self, std::uint64_t losses) {
  auto& s = self->state;
  if (losses != s.losses) return; // it came back, and is lost anew
  s.moving = false;
  if (s.now == phase::up || s.now == phase::stopping) return;
  offer_requests(self);
  move_requests_later(self);
}

void give_up(self_pointer self, const std::string& reason) {
  auto& s = self->state;
  s.now = phase::failed;
  clear_seats(self);
  end_standbys(s);
  if (s.shared->slots) s.shared->slots->release(s.replica);
  s.shared->group_waits(s.replica, "");
  s.shared->log(replica_prefix(s) + "given up: " + reason);
  fail_start(self, {{}, reason, false});
  s.shared->health.give_group_up(s.replica, reason);
  end_change(self, replica_prefix(s) + "given up: " + reason);
  if (s.shared->health.failed()) return end_everything(self);
  offer_requests(self);
  move_requests_later(self);
}

void fail_start(self_pointer self, const device_start_failed& failed) {
  auto& s = self->state;
  if (s.first == nullptr) return;
  if (failed.bad_checkpoint) {
    s.first->set_exception(std::make_exception_ptr(load_error(failed.reason)));
  } else {
    s.first->set_exception(std::make_exception_ptr(std::runtime_error(failed.reason)));
  }
  s.first = nullptr;
}

bool core_actor_ended(self_pointer self, const caf::actor_addr& source) {
  auto& s = self->state;
  const bool cluster = s.core.cluster && source == s.core.cluster.address();
  if (!cluster && source != s.core.gateway.address() && source != s.core.scheduler.address() && source != s.core.detokenizer.address()) {
    return false;
  }
  if (s.now == phase::stopping) return true;
  s.now = phase::failed;
  clear_seats(self);
  end_standbys(s);
  s.shared->health.fail("an internal actor failed");
  end_change(self, "an internal actor failed");
  end_everything(self);
  const error reason = s.shared->health.refusal();
  self->send(s.core.detokenizer, end_all{reason});
  // A dead actor makes no more calls, so its requests may be ended from here.
  if (source == s.core.gateway.address()) end_requests(*s.shared, false, reason);
  if (source == s.core.detokenizer.address()) end_requests(*s.shared, true, reason);
  return true;
}

} // namespace troupe::actors
