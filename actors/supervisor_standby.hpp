// Processes that have made themselves ready for a rank and wait to be called when it is lost, so that what a process does before it is told
// its place is done by then. Part of the supervisor.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "actors/supervisor_seats.hpp"

namespace troupe::actors {

// The group is up: its standbys start a little later, beside steps and not beside the replay.
void start_standbys_later(supervisor_pointer self);
void standby_time_is_over(supervisor_pointer self);

// The standby for this rank, called to the group that is starting; null: there is none, or of another program. `rank_seat::started_as` is
// then its number.
std::unique_ptr<worker_process> call_standby(supervisor_pointer self, std::int32_t rank);

// The rank whose standby was called and has said nothing since; none: there is none.
std::optional<std::int32_t> silent_standby(const supervisor_state& s);

// News of a child that no rank has. A standby that has ended is replaced in time, unless it ended soon: then when a group is up again.
void standby_has_changed(supervisor_pointer self, const child_changed& changed);

// Kills them, and none will be called: after a fault nothing is trusted that was there before it.
void dismiss_standbys(supervisor_state& s);
// Reaps them as well.
void end_standbys(supervisor_state& s);

} // namespace troupe::actors
