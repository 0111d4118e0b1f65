// How CAF is set up in a serving process and in a device process.
#pragma once

#include <caf/actor_system_config.hpp>

namespace troupe::actors {

// `network`: with the middleman, for talking to device processes.
struct system_config : caf::actor_system_config {
  explicit system_config(bool network);
};

} // namespace troupe::actors
