// A plan as arrays for the device: which rows it has, which logits they need, what changes in the slots. Pure host code.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/step.hpp"
#include "kernels/prefill_attention_gpu.hpp"
#include "kernels/step_rows_gpu.hpp"
#include "models/slot_table.hpp"

namespace troupe {

struct gpu_step {
  std::vector<gpu::opened_slot> opened;
  std::vector<slot_id> forgotten; // slots with penalties whose history begins anew
  std::vector<gpu::table_change> tables;
  std::vector<gpu::listed_token> biases, suppressed;
  std::vector<gpu::copied_block> copies; // in the plan's order
  std::vector<gpu::step_row> rows;       // decode items first, then those of `spans`
  std::int32_t decode_rows = 0;
  std::vector<gpu::prefill_span> spans; // tables are slots
  std::vector<gpu::step_head> heads;
  std::vector<gpu::step_item> items;       // in the plan's order
  std::vector<gpu::counted_token> counted; // of prefill items in slots with penalties
  bool reports = false;                    // logprobs are wanted
  bool verifies = false;

  void clear();
};

// Fills `step` (cleared before) from a plan that `slots` has taken, and moves the slots' positions on as if every item went well; a verify
// item leaves its slot without one, until its result is known.
void lay_out(const step_plan& plan, slot_table& slots, gpu_step& step);

// What this device cannot do of what the plan asks for, or none; before `slots` takes the plan.
std::optional<std::string> beyond_device(const step_plan& plan);

} // namespace troupe
