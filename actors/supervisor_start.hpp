// From places that are free to a group that is up: who is started, who says hello, what they agree on. Part of the supervisor.
#pragma once

#include "actors/supervisor_seats.hpp"

namespace troupe::actors {

// Starts all ranks anew, or waits until there are slots for them.
void start_group(supervisor_pointer self);
// Some rank did not start: a first start fails for good, unless a node is to blame; a later one is tried again after a while.
void start_has_failed(supervisor_pointer self, const device_start_failed& failed, bool by_node = false);

// What ranks that start say, in this order.
void device_is_there(supervisor_pointer self, const device_hello& hello);
void rendezvous_is_known(supervisor_pointer self, const group_rendezvous& at);
void device_is_ready(supervisor_pointer self, const device_ready& ready); // with the last one the group is up
void device_did_not_start(supervisor_pointer self, const device_start_failed& failed);

} // namespace troupe::actors
