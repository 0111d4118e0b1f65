// One rank: owns a step_executor on its own thread, whichever process that is in.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "actors/actor_pointer.hpp"
#include "actors/protocol.hpp"
#include "actors/serving.hpp"

namespace troupe::actors {

struct device_state {
  static constexpr const char* name = "device";

  executor_factory make_executor;
  registrar_actor registrar;
  std::string token;
  std::int32_t rank = 0;
  std::unique_ptr<step_executor> executor; // null until it was told its rank, and after a failure
  std::shared_ptr<std::atomic<bool>> failed = std::make_shared<std::atomic<bool>>(false);
};

// Introduces itself to `registrar`, makes the executor of the rank that it is told to be (which may take minutes), and works through
// plans until one fails: the executor goes then, so that no other rank waits for it. Ends when the registrar is gone. Must be detached.
device_actor::behavior_type run_device(actor_pointer<device_actor, device_state> self, executor_factory make_executor,
                                       registrar_actor registrar, std::string token);

} // namespace troupe::actors
