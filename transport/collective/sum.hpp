// Sums over ranks, in the order of ranks.
#pragma once

#include <cstddef>
#include <span>

#include "core/dtype.hpp"

namespace troupe {

// out[i] = inputs[0][i] + inputs[1][i] + .., added from the left in f32 and rounded to `type` once, for `count` elements of F32, F16 or
// BF16. `out` may be one of the inputs.
void sum_in_rank_order(dtype type, std::span<const std::byte* const> inputs, std::byte* out, std::size_t count);

// Where slice `slice` of `count` elements begins when every rank takes one. slice_begin(count, slices, slices) == count.
std::size_t slice_begin(std::size_t count, std::size_t slice, std::size_t slices);

} // namespace troupe
