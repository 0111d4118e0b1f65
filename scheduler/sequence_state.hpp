// The scheduler's own record of a sequence. Truth is its progress; all else is about one life on a device.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/ids.hpp"
#include "scheduler/ngram_index.hpp"
#include "scheduler/sequence.hpp"
#include "scheduler/speculation.hpp"
#include "scheduler/token_view.hpp"

namespace troupe {

struct sequence_state : sequence_progress {
  std::vector<std::uint64_t> block_hashes;                                // of the leading full blocks, as far as they were needed
  ngram_index ngrams;                                                     // kept when drafts come from it
  std::array<acceptance, 2> accepted{acceptance(0.8F), acceptance(0.5F)}; // what became of its drafts, by kind

  // One life: from the opening of a slot to a preemption, a lost device or the end.
  std::uint64_t life = 0; // no two lives of any sequences have the same; rows of an older one are dropped
  std::optional<slot_id> slot;
  std::vector<block_id> blocks;
  std::int32_t planned = 0;   // positions 0 .. planned-1 are computed or in flight
  std::int32_t confirmed = 0; // positions 0 .. confirmed-1 are computed: their results were applied
  std::int32_t indexed = 0;   // leading blocks that are in the prefix index
  std::int32_t samples_in_flight = 0;
  step_number last_draw = 0;       // the plan that holds or held it
  std::vector<token_id> proposals; // of the device's draft model, for what follows the last output
  bool proven = false;             // a token came back in this life
  bool primed = false;             // a sample was planned in this life: the device holds the last token

  std::int32_t prompt_size() const { return static_cast<std::int32_t>(request.prompt.size()); }
  std::int32_t output_size() const { return static_cast<std::int32_t>(outputs.size()); }
  std::int32_t known() const { return prompt_size() + output_size(); }
  token_id token_at(std::int32_t position) const { return tokens()[position]; }
  token_view tokens() const { return {request.prompt, outputs}; }
  // Of drafts that it would be given now: 1 where a short n-gram found them, else 0. What follows a longer one is right more often.
  std::size_t draft_kind() const { return ngrams.matches() && !ngrams.matches_long() ? 1 : 0; }
  // Outputs that are neither there nor in flight.
  std::int32_t outputs_left() const { return request.stop.max_tokens - output_size() - samples_in_flight; }
  bool wants_output() const { return outputs_left() > 0; }
  bool can_decode() const { return primed && wants_output(); }
  bool can_prefill() const { return !primed && planned < known(); }
  bool wants_scores() const { return request.prompt_logprobs.has_value() && scored + 1 < prompt_size(); }
  // A device builds the counts that penalties need from the rows it is given, and scores rows that it computes: neither can be skipped.
  bool needs_every_row() const {
    const sampling_params& p = request.sampling;
    return p.repetition_penalty != 1.0F || p.presence_penalty != 0.0F || p.frequency_penalty != 0.0F || wants_scores();
  }
  bool suspect() const { return faults_in_a_row > 0; }

  void leave_device() {
    life = 0;
    slot.reset();
    blocks.clear();
    planned = confirmed = indexed = 0;
    samples_in_flight = 0;
    last_draw = 0;
    proposals.clear();
    proven = false;
    primed = false;
  }
};

} // namespace troupe
