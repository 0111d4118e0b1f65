// Owns the pure scheduler of one replica: plans go to every rank of its group, the leader's results are applied and the next step is
// planned, one step ahead. Reads the clock on its behalf. A plan without an answer for step_deadline, or with some answers and not all for
// longer than a rank may be late, means that the group is lost.
//
// Outputs leave with the leader's answer: what it drew went through every rank's part of the step, so no other rank can take it back. A
// plan is done when all ranks have answered, and at most one plan more than plans_in_flight is not done.
#pragma once

#include <cstddef>
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
    step_number step = 0;
    std::uint64_t sent_ns = 0;
    std::int64_t sequences = 0;
    std::int64_t tokens = 0;
    std::size_t answers = 0;
    std::uint64_t first_answer_ns = 0;            // 0: none yet
    std::uint64_t first_took_ns = 0;              // the rank that answered first
    telemetry::step_record traced;                // filled while something is traced
    std::vector<std::uint64_t> first_of_stage_ns; // as first_answer_ns, by stage
  };
  struct rank_state {
    device_actor device;
    std::size_t answered = 0; // of `sent`, from the front
    std::uint64_t last_answer_ns = 0;
  };

  shared_state shared;
  std::int32_t replica = 0;
  detokenizer_actor detokenizer;
  supervisor_actor supervisor;
  std::optional<scheduler> core;    // from the first group on
  std::vector<rank_state> ranks;    // empty: no group at the moment
  generation_number generation = 0; // of the last group
  bool halted = false;              // a rank waited in vain for another: nothing is planned until the supervisor has found out why
  bool pausing = false;             // nothing is planned any more: the group is let go once all plans are done
  std::deque<sent_plan> sent;       // not answered by all ranks yet, oldest first
  std::uint64_t last_news_ns = 0;   // last answer, or the plan that ended an idle time
  std::uint64_t preemptions = 0;    // as last reported
  draft_counts drafts;              // likewise
  bool ticking = false;
};

scheduler_actor::behavior_type run_scheduler(actor_pointer<scheduler_actor, scheduler_actor_state> self, shared_state shared,
                                             std::int32_t replica, detokenizer_actor detokenizer);

} // namespace troupe::actors
