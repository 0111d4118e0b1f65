// How tiles of a product's matrices come into shared memory: boxes of 64 columns (128 bytes, swizzled) of so many rows.
#pragma once

#include "kernels/cuda/tensor_map.hpp"

namespace troupe::gpu {

constexpr int box_columns = 64;

// W [rows][columns] for tiles of `tile_rows` rows. Plain: rows in their own order, a tile in one copy. Else pairs of rows `distance` apart,
// 8 firsts, their 8 seconds, the next 8 firsts, ...; `box_groups` tells how many such 16 rows one copy brings: tiles are multiples of it.
struct weight_map {
  CUtensorMap map;
  std::int32_t box_groups;
};
weight_map map_weight(dtype type, const void* weight, std::int64_t rows, std::int64_t columns, bool plain, std::int32_t distance,
                      std::int32_t tile_rows);
// x [rows][columns] for boxes of all of `box_rows` rows; rows and columns behind the last are zeros.
CUtensorMap map_rows(dtype type, const void* x, std::int64_t rows, std::int64_t columns, std::int64_t stride, std::int32_t box_rows);

} // namespace troupe::gpu
