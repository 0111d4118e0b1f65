// Owns the pure scheduler: plans go to the device, results are applied and the next step is planned, one step ahead. Reads the clock
// on its behalf. A plan without a result for step_deadline means that the device is lost.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "actors/actor_pointer.hpp"
#include "actors/protocol.hpp"
#include "actors/serving_state.hpp"
#include "scheduler/scheduler.hpp"

namespace troupe::actors {

struct scheduler_actor_state {
  static constexpr const char* name = "scheduler";

  struct sent_plan {
    std::uint64_t sent_ns = 0;
    std::int64_t sequences = 0;
    std::int64_t tokens = 0;
    telemetry::step_record traced; // filled while something is traced
  };

  shared_state shared;
  detokenizer_actor detokenizer;
  supervisor_actor supervisor;
  std::optional<scheduler> core;  // from the first device on
  device_actor device;            // null: none at the moment
  device_number number = 0;       // of the last device
  std::deque<sent_plan> sent;     // without a result yet, oldest first
  std::uint64_t last_news_ns = 0; // last result, or the plan that ended an idle time
  std::uint64_t preemptions = 0;  // as last reported
  draft_counts drafts;            // likewise
  bool ticking = false;
};

scheduler_actor::behavior_type run_scheduler(actor_pointer<scheduler_actor, scheduler_actor_state> self, shared_state shared,
                                             detokenizer_actor detokenizer);

} // namespace troupe::actors
