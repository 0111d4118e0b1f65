// What a step's result, or its loss, makes of the sequences.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/scheduler_core.hpp"

namespace troupe {

// Rows of sequences that ended or were preempted meanwhile are dropped.
std::vector<sequence_update> absorb_result(scheduler_core& core, const plan_in_flight& plan, const step_result& result,
                                           std::uint64_t now_ns);

// Everything goes back to the queue, the epoch rises; the quarantined ones come back failed. `kv_may_stay`: as of scheduler::device_lost.
std::vector<sequence_update> absorb_loss(scheduler_core& core, std::uint64_t now_ns, loss_cause cause, bool kv_may_stay);

// Ends `s`, failed with `reason`.
sequence_update fail_sequence(scheduler_core& core, sequence_state& s, error reason, std::uint64_t now_ns);

} // namespace troupe
