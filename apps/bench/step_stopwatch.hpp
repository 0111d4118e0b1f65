// Times single steps of chosen shapes on a bare executor, for tables of step costs.
#pragma once

#include <cstdint>
#include <vector>

#include "core/step.hpp"

namespace troupe::bench {

// One kind of step. A slot may begin at any position, so no context need be computed.
struct timed_shape {
  std::int32_t rows = 0;    // that decode, each with `context` tokens before it
  std::int32_t context = 1; // at least 1
  std::int32_t tokens = 0;  // of one prefill chunk
  std::int32_t prefix = 0;  // tokens that stand before the chunk
};

class step_stopwatch {
 public:
  // Writes every KV block once: memory that was never written is one page of zeros, and faster to read than any KV.
  // `executor` outlives this and is used by nobody else. Throws std::runtime_error, here and below, when a step fails.
  explicit step_stopwatch(step_executor& executor);

  // Nanoseconds of one step of that shape, after a short prefill that opens its slots and, where it decodes, one step that decodes its
  // rows: decode steps come in rows. Rows and tokens fit the executor's limits, and so do two tokens more for each row.
  double once(const timed_shape& shape);
  // The midmean of some repetitions: as many as fit `patience_ns`, at least one and at most 25.
  double typical(const timed_shape& shape, double patience_ns);

 private:
  void write_all_blocks();
  void open_slot(step_plan& plan, slot_id slot, std::int32_t length, std::int32_t& next_block);
  void add_prefill(step_plan& plan, slot_id slot, std::int32_t first, std::int32_t count) const;
  static void add_decodes(step_plan& plan, std::int32_t rows, std::int32_t position);
  void submit(step_plan& plan);

  step_executor& executor_;
  executor_info info_;
  std::vector<slot_id> open_;
  step_number step_ = 0;
};

} // namespace troupe::bench
