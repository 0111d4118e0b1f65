// Names of things that cross folder borders. All are plain integers: they travel in messages.
#pragma once

#include <compare>
#include <cstdint>

namespace troupe {

using token_id = std::int32_t;      // index into the model's vocabulary, 0-based
using block_id = std::int32_t;      // physical KV block, the same number on every rank of a group
using slot_id = std::int32_t;       // row of a device's per-sequence state, 0 .. max_num_seqs-1
using request_id = std::uint64_t;   // unique in the life of a serving process, never 0
using epoch_number = std::uint64_t; // raised whenever device state was lost; older results are ignored
using step_number = std::uint64_t;  // counts plans within an epoch, from 1

// One choice of one request: choice `index` of `n * prompts`.
struct sequence_id {
  request_id request = 0;
  std::int32_t index = 0;

  friend auto operator<=>(const sequence_id&, const sequence_id&) = default;
};

} // namespace troupe
