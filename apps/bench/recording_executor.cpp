#include "apps/bench/recording_executor.hpp"

#include "core/clock.hpp"

namespace troupe::bench {

void recording_executor::submit(const step_plan& plan, deliver_fn deliver) {
  recorded_step step;
  for (const work_item& item : plan.items) {
    if (item.kind == work_kind::prefill) {
      step.prefill_tokens += item.token_count;
    } else {
      step.decode_rows += item.token_count;
      step.decode_positions += std::int64_t{item.first_position} * item.token_count;
    }
  }
  step.begin_ns = now_ns();
  inner_->submit(plan, [log = log_, step, deliver = std::move(deliver)](step_outcome outcome) mutable {
    step.end_ns = now_ns();
    log->add(step); // before the result goes out: whoever has seen the result finds its step here
    deliver(std::move(outcome));
  });
}

} // namespace troupe::bench
