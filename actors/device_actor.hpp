// One rank: owns a step_executor on its own thread, whichever process that is in.
#pragma once

#include <memory>
#include <string>

#include "actors/actor_pointer.hpp"
#include "actors/protocol.hpp"
#include "actors/serving.hpp"

namespace troupe::actors {

struct device_state {
  static constexpr const char* name = "device";

  std::unique_ptr<step_executor> executor;
};

// Makes the executor (which may take minutes) and introduces itself to `registrar`; ends when that is gone. Must be detached.
device_actor::behavior_type run_device(actor_pointer<device_actor, device_state> self, executor_factory make_executor,
                                       registrar_actor registrar, std::string token);

} // namespace troupe::actors
