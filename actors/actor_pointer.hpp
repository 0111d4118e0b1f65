// The `self` of our actors.
#pragma once

#include <caf/stateful_actor.hpp>
#include <caf/typed_event_based_actor.hpp>

namespace troupe::actors {

template <class Handle, class State>
using actor_pointer = caf::stateful_actor<State, typename Handle::base>*;

} // namespace troupe::actors
