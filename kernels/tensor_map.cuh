// Descriptions of matrices for the tensor copy engine, which brings boxes of them into shared memory in rows of 128 bytes, swizzled.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "core/dtype.hpp"

namespace troupe::gpu {

constexpr int box_columns = 64; // 16-bit elements: 128 bytes

// W [rows][columns] for boxes of 64 rows. Plain: rows in their own order. Else pairs of rows `distance` apart, 8 firsts, their 8 seconds,
// the next 8 firsts, ...; `box_groups` tells how many such 16 rows one copy brings.
struct weight_map {
  CUtensorMap map;
  std::int32_t box_groups;
};
weight_map map_weight(dtype type, const void* weight, std::int64_t rows, std::int64_t columns, bool plain, std::int32_t distance);
// x [rows][columns] for boxes of all of `box_rows` rows; rows and columns behind the last are zeros.
CUtensorMap map_rows(dtype type, const void* x, std::int64_t rows, std::int64_t columns, std::int64_t stride, std::int32_t box_rows);

} // namespace troupe::gpu
