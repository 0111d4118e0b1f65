// What becomes of requests while a group is away, and when nothing can serve them any more. Part of the supervisor.
#pragma once

#include <string>

#include "actors/actor_pointer.hpp"
#include "actors/supervisor_actor.hpp"

namespace troupe::actors {

using supervisor_pointer = actor_pointer<supervisor_actor, supervisor_state>;

// "replica 1: " where there are several.
std::string replica_prefix(const supervisor_state& s);

// Requests must not wait for a group that takes its time while another could do their work. The timer goes on until the group is up,
// and each loss has its own.
void move_requests_later(supervisor_pointer self);
void move_time_is_over(supervisor_pointer self, std::uint64_t losses);
// What waits goes to another replica now, if one is up.
void offer_requests(supervisor_pointer self);

// No group comes again.
void give_up(supervisor_pointer self, const std::string& reason);
void fail_start(supervisor_pointer self, const device_start_failed& failed);
// True when `source` was one of the actors without which nothing can be served.
bool core_actor_ended(supervisor_pointer self, const caf::actor_addr& source);

} // namespace troupe::actors
