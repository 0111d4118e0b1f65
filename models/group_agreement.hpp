// What the ranks of a group must agree on before any of them takes memory.
#pragma once

#include "core/step.hpp"
#include "models/rank_context.hpp"

namespace troupe {

// What every rank is to be: `mine`, with the smallest number of blocks that any rank has planned. To be called by all ranks at once. Throws
// load_error, with the numbers, where ranks differ in anything else, and collective_error.
executor_info agree(const executor_info& mine, const rank_context& rank);

} // namespace troupe
