// What planning and absorbing share: the sequences, the blocks, and the plans that are out.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "kvcache/kv_cache.hpp"
#include "scheduler/deadlines.hpp"
#include "scheduler/scheduler.hpp"
#include "scheduler/sequence_table.hpp"
#include "scheduler/speculation.hpp"
#include "scheduler/step_cost.hpp"

namespace troupe {

// One item of a plan that is out, as its result needs it.
struct planned_row {
  std::uint64_t life = 0;
  slot_id slot = 0;
  std::int32_t first_position = 0;
  std::int32_t token_count = 0;
  std::int32_t drafts = 0; // the last rows
  std::size_t draft_kind = 0;
  bool sample = false;
  bool proposes = false; // asks for proposals
};

struct plan_in_flight {
  step_number step = 0;
  std::uint64_t planned_ns = 0;
  std::int64_t tokens = 0;
  std::int64_t prefill_tokens = 0;
  bool verifies = false;
  bool proposes = false; // asks for proposals
  std::vector<planned_row> rows;
};

// A running sequence's block was found to exist already: the device must use the other from the next plan on.
struct block_change {
  std::uint64_t life = 0;
  slot_id slot = 0;
  std::int32_t index = 0; // of the logical block
  block_id block = 0;
};

struct scheduler_core {
  explicit scheduler_core(scheduler_config c);

  std::int32_t blocks_of(std::int64_t tokens) const { return blocks_for(tokens, config.device.block_size); }

  // Gives slot and blocks up, and waits. Both may be handed out again at once, even in the plan that closes the slot: a device works
  // through plans in order, and through a plan's closed slots first.
  void release(sequence_state& s);
  // Forgets `s` wherever it is.
  void end(sequence_state& s);

  // The longest chain of cached blocks that starts `s`, which then owns them; the block of the last known token is not among them, for
  // a row must be computed to draw the next. Empty when the sequence may not skip rows.
  std::vector<block_id> find_prefix(sequence_state& s);
  // Blocks that are complete by `s.confirmed` enter the index.
  void index_blocks(sequence_state& s);
  // Gives up the blocks that neither hold rows nor will hold those of the drafts that were proposed. No plan that works on `s` may be out.
  void give_back_drafts(sequence_state& s);
  // Drafts that `s` should be given, at most, as far as its tokens are known; some may be in flight.
  std::int32_t drafts_for(const sequence_state& s) const;

  scheduler_config config;
  kv_cache cache;
  sequence_table sequences;
  deadline_list deadlines;
  std::vector<slot_id> to_close;     // closed with the next plan
  std::vector<block_change> changes; // granted with the next plan
  std::deque<plan_in_flight> in_flight;
  step_cost cost;
  speculation drafting;
  draft_counts drafts;
  decayed_mean stay_ns;             // of sequences on a device, from the first scheduling to the end
  std::uint64_t last_result_ns = 0; // 0: none yet
  epoch_number epoch = 1;
  step_number last_step = 0;
  std::uint64_t preemptions = 0;

 private:
  block_content content_of(sequence_state& s, std::int32_t index, std::optional<block_id> parent);

  std::vector<token_id> tokens_; // of the block that content_of() describes
};

} // namespace troupe
