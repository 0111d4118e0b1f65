#include "actors/supervisor_start.hpp"

#include <algorithm>
#include <caf/actor_cast.hpp>
#include <caf/exit_reason.hpp>
#include <caf/stateful_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <utility>

#include "actors/group_limits.hpp"
#include "actors/slot_board.hpp"
#include "actors/supervisor_end.hpp"
#include "actors/supervisor_program.hpp"
#include "actors/supervisor_standby.hpp"

namespace troupe::actors {

namespace {

using self_pointer = supervisor_pointer;
using phase = supervisor_state::phase;

constexpr std::chrono::milliseconds kPlacesLook{500}; // between looks for free slots; nodes that join are told besides

// 0.1 s, doubling to 5 s: what made a start fail (memory not yet given back, say) needs time to go away.
std::chrono::milliseconds retry_delay(int failures) {
  return std::min(std::chrono::milliseconds(100) * (1 << std::min(failures, 6)), std::chrono::milliseconds(5000));
}

void wait_for_places(self_pointer self) {
  auto& s = self->state;
  s.now = phase::waiting;
  program_meets_no_places(self);
  set_timer(self, group_wait::places, kPlacesLook);
  const std::int32_t slots = s.shared->slots->slots_in_all();
  if (std::exchange(s.slots_seen, slots) != slots) {
    const std::string missing = "waits for slots: its group takes " + std::to_string(s.shared->options.group_size) +
                                ", the machines that are there have " + std::to_string(slots) + " for " +
                                std::to_string(s.shared->options.replicas) + " such group(s)";
    s.shared->log(replica_prefix(s) + missing);
    s.shared->group_waits(s.replica, missing);
  }
  if (!s.shared->health.accepts()) s.shared->parts.metrics->set_ready(false); // until a group is up
}

// In a cluster, where its ranks are: metrics name ranks by their numbers.
void tell_of_group(const supervisor_state& s, bool kv_kept) {
  const bool again = s.shared->health.losses(s.replica) > 0;
  std::string line = !again ? "up" : kv_kept ? "up again, with its KV cache" : "up again";
  if (s.shared->slots) line += ": " + s.shared->slots->where_is(s.replica);
  if (s.shared->slots || again) s.shared->inform(replica_prefix(s) + line);
}

void group_is_up(self_pointer self, const executor_info& info) {
  auto& s = self->state;
  if (!s.info) s.info = info;
  s.now = phase::up;
  s.was_up = true;
  s.failed_starts = 0;
  s.shared->health.group_up(s.replica, true);
  s.shared->parts.metrics->set_ready(s.shared->health.accepts());
  const bool kv_kept = std::all_of(s.seats.begin(), s.seats.end(), [](const rank_seat& seat) { return seat.kv_kept; });
  tell_of_group(s, kv_kept);
  std::vector<device_actor> devices;
  for (const rank_seat& seat : s.seats) devices.push_back(seat.device);
  self->send(s.core.scheduler, caf::join_atom::value, s.generation, info, kv_kept, std::move(devices));
  if (s.first != nullptr) std::exchange(s.first, nullptr)->set_value(info);
  program_meets_group(self);
  start_standbys_later(self);
}

} // namespace

void start_has_failed(self_pointer self, const device_start_failed& failed, bool by_node) {
  auto& s = self->state;
  clear_seats(self);
  if (s.first != nullptr && !by_node) {
    s.now = phase::failed;
    end_change(self, failed.reason);
    return fail_start(self, failed);
  }
  if (program_meets_failed_start(self, failed.reason)) return start_group(self);
  s.loss = failed.reason;
  s.shared->log(replica_prefix(s) + "start failed: " + s.loss);
  s.shared->parts.metrics->start_failed(s.replica);
  s.now = phase::retiring; // nothing is left to wait for but time
  set_timer(self, group_wait::retry, retry_delay(s.failed_starts++));
}

void start_group(self_pointer self) {
  auto& s = self->state;
  clear_seats(self);
  if (!claim_places(self)) return wait_for_places(self);
  s.slots_seen = -1;
  s.shared->group_waits(s.replica, "");
  s.now = phase::starting;
  ++s.generation;
  s.was_up = false;
  s.rendezvous.reset();
  try {
    start_ranks(self);
    set_timer(self, group_wait::start, start_deadline_of(s));
  } catch (const std::exception& e) {
    start_has_failed(self, {{}, e.what(), false});
  }
}

void device_is_there(self_pointer self, const device_hello& hello) {
  auto& s = self->state;
  const auto device = caf::actor_cast<device_actor>(self->current_sender());
  rank_seat* seat = s.now == phase::starting ? find_seat(s, hello.token) : nullptr;
  if (seat == nullptr || seat->device) { // too late, or an impostor
    if (!s.network()) self->send_exit(device, caf::exit_reason::kill);
    return;
  }
  seat->device = device;
  if (s.network()) {
    seat->address = device.address();
    self->monitor(device);
    if (std::all_of(s.seats.begin(), s.seats.end(), [](const rank_seat& x) { return x.device != nullptr; })) close_port(self);
  }
  tell_place(self, *seat);
}

void rendezvous_is_known(self_pointer self, const group_rendezvous& at) {
  auto& s = self->state;
  if (s.now != phase::starting || at.token != s.seats.front().token || s.rendezvous) return;
  s.rendezvous = at.text;
  std::for_each(s.seats.begin() + 1, s.seats.end(), [self](rank_seat& seat) { tell_place(self, seat); });
}

void device_is_ready(self_pointer self, const device_ready& ready) {
  auto& s = self->state;
  rank_seat* seat = s.now == phase::starting ? find_seat(s, ready.token) : nullptr;
  if (seat == nullptr) return; // it was told to go, or is an impostor
  seat->info = ready.info;
  seat->kv_kept = ready.kv_kept;
  std::vector<executor_info> infos;
  for (const rank_seat& x : s.seats) {
    if (!x.info) return;
    infos.push_back(*x.info);
  }
  group_limits agreed = limits_of_group(infos, s.info);
  if (!agreed.objection.empty()) return start_has_failed(self, {ready.token, std::move(agreed.objection), false});
  group_is_up(self, agreed.info);
}

void device_did_not_start(self_pointer self, const device_start_failed& failed) {
  auto& s = self->state;
  const rank_seat* seat = s.now == phase::starting ? find_seat(s, failed.token) : nullptr;
  if (seat == nullptr) return;
  const auto rank = static_cast<std::int32_t>(seat - s.seats.data());
  start_has_failed(self, {failed.token, rank_name(s, rank) + failed.reason, failed.bad_checkpoint});
}

} // namespace troupe::actors
