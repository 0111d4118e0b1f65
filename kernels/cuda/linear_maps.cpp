#include "kernels/cuda/linear_maps.hpp"

#include <numeric>

namespace troupe::gpu {

weight_map map_weight(dtype type, const void* weight, std::int64_t rows, std::int64_t columns, bool plain, std::int32_t distance,
                      std::int32_t tile_rows) {
  const auto width = static_cast<std::uint64_t>(columns), count = static_cast<std::uint64_t>(rows),
             d = static_cast<std::uint64_t>(distance);
  const auto box_rows = static_cast<std::uint32_t>(tile_rows);
  if (plain) {
    return {make_tensor_map<5>({type, weight, {width, count, 1, 1, 1}, {width, width, width, width}, {box_columns, box_rows, 1, 1, 1}}),
            tile_rows / 16};
  }
  const std::int32_t groups = std::gcd(tile_rows / 16, distance / 8);
  return {make_tensor_map<5>({type,
                              weight,
                              {width, 8, 2, d / 8, count / (2 * d)},
                              {width, d * width, 8 * width, 2 * d * width},
                              {box_columns, 8, 2, static_cast<std::uint32_t>(groups), 1}}),
          groups};
}

CUtensorMap map_rows(dtype type, const void* x, std::int64_t rows, std::int64_t columns, std::int64_t stride, std::int32_t box_rows) {
  return make_tensor_map<2>({type,
                             x,
                             {static_cast<std::uint64_t>(columns), static_cast<std::uint64_t>(rows)},
                             {static_cast<std::uint64_t>(stride)},
                             {box_columns, static_cast<std::uint32_t>(box_rows)}});
}

} // namespace troupe::gpu
