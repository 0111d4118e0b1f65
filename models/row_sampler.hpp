// From hidden rows to tokens and scores: the head in chunks of bounded memory, then sampling and scoring on all threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/step.hpp"
#include "kernels/sampling.hpp"
#include "models/cpu_model.hpp"
#include "models/slot_table.hpp"

namespace troupe {

// A row of the last forward() that needs logits.
struct head_row {
  std::int32_t row = 0;
  std::size_t item = 0;           // index of its work item and output
  std::int32_t next_position = 0; // of the token that the logits are about
  std::optional<token_id> target; // a prompt token to score
  std::int32_t alternatives = 0;  // best ones to report beside the target
  bool sample = false;
  std::size_t drafts = 0; // verify: rows of the item before this one; all of their draws must have been as proposed
  token_id draft = 0;     // with drafts > 0: what was proposed as the draw of the row before, and is this row's input
};

class row_sampler {
 public:
  // Ids from `vocab` on are never looked at.
  row_sampler(cpu_model& model, std::int32_t vocab);

  // Fills outputs[head.item] for every head row (rows of an item are neighbours, in order), and the slots' histories and faults.
  void run(std::span<const head_row> heads, slot_table& slots, std::vector<slot_output>& outputs);

 private:
  void run_chunk(std::span<const head_row> heads, slot_table& slots, std::vector<slot_output>& outputs);
  void take_row(const head_row& head, const float* logits, cpu::sampler& sampler, slot_state& slot, slot_output& output);

  cpu_model& model_;
  std::int32_t vocab_;
  std::vector<cpu::sampler> samplers_; // one per thread
  std::vector<std::int32_t> rows_;     // of the chunk
  std::vector<std::size_t> groups_;    // where each item's rows begin in the chunk, and the end
};

} // namespace troupe
