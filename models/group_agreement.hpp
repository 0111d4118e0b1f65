// What the ranks of a group must agree on before any of them takes memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "core/step.hpp"
#include "models/rank_context.hpp"

namespace troupe {

// Of the machine's memory, which ranks of one machine share.
struct memory_claim {
  std::size_t bytes = 0;                  // that the rank will take
  std::optional<std::uint64_t> available; // now; none: not known
};

// What every rank is to be: `mine`, with the smallest number of blocks that any rank has planned. To be called by all ranks at once. Throws
// load_error, with the numbers, where ranks differ in anything else or where those of this machine together need more than there is, and
// collective_error.
executor_info agree(const executor_info& mine, const memory_claim& memory, const rank_context& rank);

} // namespace troupe
