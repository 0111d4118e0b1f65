// Stored elements to floats, a block of rows at a time. Private to the CPU kernels.
#pragma once

#include <cstdint>

#include "core/dtype.hpp"

namespace troupe::cpu {

// to[r * to_stride + c] = from[r * from_stride + c], widened exactly, for r < rows and c < columns; strides in elements.
using widen_rows_fn = void (*)(const void* from, std::int64_t from_stride, std::int64_t rows, std::int64_t columns, float* to,
                               std::int64_t to_stride);

// For f32, f16 or bf16: the fastest this machine has. All give the same floats.
widen_rows_fn widen_rows_for(dtype type);

} // namespace troupe::cpu
