#include "actors/supervisor_standby.hpp"

#include <sys/wait.h>

#include <algorithm>
#include <caf/actor_cast.hpp>
#include <caf/send.hpp>
#include <caf/stateful_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <exception>
#include <utility>

#include "actors/supervisor_end.hpp"
#include "core/clock.hpp"

namespace troupe::actors {

namespace {

using self_pointer = supervisor_pointer;

constexpr std::chrono::milliseconds kAfterStart{1000};          // from a group that is up to its standbys
constexpr std::chrono::milliseconds kAnswer{3000};              // from a call to its hello: time for one that was not ready yet
constexpr std::chrono::milliseconds kAfterEnd{10'000};          // from one that has ended to the next
constexpr generation_number kStandbys = std::uint64_t{1} << 63; // their numbers are above those of groups

bool wanted(const supervisor_state& s) { return s.shared->options.standby && s.network() && !s.shared->cluster; }

void start_standby(self_pointer self, std::int32_t rank) {
  auto& s = self->state;
  const serving_options& o = s.shared->options;
  const program_number program = program_on(s, this_machine);
  worker_start start{o.worker_command, {}, o.worker_preamble, 0, {}};
  start.command.front() = s.shared->programs.at(program);
  const generation_number number = kStandbys | ++s.standbys_made;
  const auto report = [boss = supervisor_actor(self), number, rank](int status) {
    caf::anon_send(boss, child_changed{number, rank, status});
  };
  s.standbys[static_cast<std::size_t>(rank)] = {make_standby(std::move(start), s.replica, rank, report), number, program, now_ns()};
}

} // namespace

void start_standbys_later(self_pointer self) {
  if (wanted(self->state)) set_timer(self, group_wait::standby, kAfterStart);
}

void standby_time_is_over(self_pointer self) {
  auto& s = self->state;
  if (s.now != supervisor_state::phase::up) return; // the next group that is up sees to it
  s.standbys.resize(s.seats.size());
  try {
    for (std::int32_t rank = 0; rank < static_cast<std::int32_t>(s.standbys.size()); ++rank) {
      if (s.standbys[static_cast<std::size_t>(rank)].process == nullptr) start_standby(self, rank);
    }
  } catch (const std::exception& e) { // nothing depends on them
    s.shared->log(replica_prefix(s) + "no standby: " + e.what());
  }
}

std::unique_ptr<worker_process> call_standby(self_pointer self, std::int32_t rank) {
  auto& s = self->state;
  if (static_cast<std::size_t>(rank) >= s.standbys.size()) return nullptr;
  standby_seat standby = std::exchange(s.standbys[static_cast<std::size_t>(rank)], {});
  if (standby.process == nullptr || standby.number == 0 || standby.program != program_on(s, this_machine)) return nullptr;
  rank_seat& seat = s.seats[static_cast<std::size_t>(rank)];
  seat.started_as = standby.number;
  standby.process->call(s.port, seat.token);
  set_timer(self, group_wait::answer, kAnswer);
  return std::move(standby.process);
}

std::optional<std::int32_t> silent_standby(const supervisor_state& s) {
  const auto found = std::find_if(s.seats.begin(), s.seats.end(), [](const rank_seat& x) { return x.started_as > kStandbys && !x.device; });
  if (found == s.seats.end()) return std::nullopt;
  return static_cast<std::int32_t>(found - s.seats.begin());
}

void standby_has_changed(self_pointer self, const child_changed& changed) {
  auto& s = self->state;
  const auto found =
      std::find_if(s.standbys.begin(), s.standbys.end(), [&](const standby_seat& x) { return x.number == changed.generation; });
  if (found == s.standbys.end()) return;                               // of a rank that is gone, or dismissed
  if (WIFSTOPPED(changed.status)) return void(found->process->kill()); // frozen, it would not answer a call
  s.shared->log(replica_prefix(s) + rank_name(s, changed.rank) + "the standby process ended with " + describe_status(changed.status));
  const bool lasted = now_ns() - found->made_ns > static_cast<std::uint64_t>(std::chrono::nanoseconds(kAfterEnd).count());
  *found = {};
  if (lasted) set_timer(self, group_wait::standby, kAfterEnd); // else it would end again: the next group gets another try
}

void dismiss_standbys(supervisor_state& s) {
  for (standby_seat& standby : s.standbys) {
    if (standby.process != nullptr) standby.process->kill();
    standby.number = 0;
  }
}

void end_standbys(supervisor_state& s) {
  dismiss_standbys(s);
  s.standbys.clear();
}

} // namespace troupe::actors
