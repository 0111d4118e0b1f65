// What happens to the sums of a product. An epilogue sees two outputs at a time, `first` and `second`, `distance` rows of W apart: the
// halves of a rotating head, a gate and its up, or just two neighbours 8 rows apart. Pair q of a product has the rows
// q / distance * 2 distance + q % distance and the one `distance` behind it.
#pragma once

#include "kernels/half_types.cuh"
#include "kernels/linear_gpu.hpp"

namespace troupe::gpu {

__host__ __device__ __forceinline__ std::int32_t first_row_of(std::int32_t q, std::int32_t distance) {
  return q / distance * 2 * distance + q % distance;
}

template <class T>
__device__ __forceinline__ float value_or_zero(const T* from, std::int64_t at) {
  return from == nullptr ? 0.0F : to_float(from[at]);
}

// Row by row: of(row) loads what belongs to the row alone, early() what finish() will need of a pair, so that both can be under way while
// the product is.
template <class T, class Out>
struct store_epilogue {
  static constexpr bool plain = true; // the pairs' rows are W's own order
  Out* y;
  std::int64_t y_stride;
  std::int32_t out_rows;
  const T* bias;     // or null
  const T* residual; // or null

  struct row_state {
    std::int32_t row;
  };
  struct pair {
    float first, second;
  };
  __device__ row_state of(std::int32_t row) const { return {row}; }
  __device__ float addend(std::int32_t row, std::int32_t o) const {
    return o < out_rows ? value_or_zero(bias, o) + value_or_zero(residual, row * y_stride + o) : 0.0F;
  }
  __device__ pair early(const row_state& at, std::int32_t q) const {
    if (bias == nullptr && residual == nullptr) return {0.0F, 0.0F};
    const std::int32_t o = first_row_of(q, 8);
    return {addend(at.row, o), addend(at.row, o + 8)};
  }
  __device__ void put(std::int32_t row, std::int32_t o, float value) const {
    if (o >= out_rows) return;
    if constexpr (std::is_same_v<Out, float>)
      y[row * y_stride + o] = value;
    else
      y[row * y_stride + o] = from_float<T>(value);
  }
  __device__ void finish(const row_state& at, std::int32_t q, const pair& add, float first, float second) const {
    const std::int32_t o = first_row_of(q, 8);
    put(at.row, o, first + add.first);
    put(at.row, o + 8, second + add.second);
  }
};

template <class T>
struct swiglu_epilogue {
  static constexpr bool plain = false;
  T* y;
  std::int64_t y_stride;
  std::int32_t gates;

  struct row_state {
    std::int32_t row;
  };
  struct nothing {};
  __device__ row_state of(std::int32_t row) const { return {row}; }
  __device__ nothing early(const row_state&, std::int32_t) const { return {}; }
  __device__ void finish(const row_state& at, std::int32_t q, nothing, float gate, float up) const {
    if (q < gates) y[at.row * y_stride + q] = from_float<T>(gate / (1.0F + __expf(-gate)) * up);
  }
};

template <class T>
struct qkv_epilogue {
  static constexpr bool plain = false;
  T* y;
  std::int64_t y_stride;
  const T* bias;
  row_places places;
  rotary table;
  T* kv;
  std::int32_t heads, kv_heads, head_dim, block_size;

  struct row_state {
    std::int32_t row, position, block; // of the KV cache
  };
  struct pair {
    float cos, sin, first, second;
  };
  __device__ row_state of(std::int32_t row) const {
    const std::int32_t position = places.positions[row];
    return {row, position, places.block_tables[row * places.table_stride + position / block_size]};
  }
  __device__ pair early(const row_state& at, std::int32_t q) const {
    const std::int32_t half = head_dim / 2, head = q / half, dim = q % half;
    pair p{1.0F, 0.0F, 0.0F, 0.0F};
    if (head >= heads + 2 * kv_heads) return p;
    p.first = value_or_zero(bias, head * head_dim + dim);
    p.second = value_or_zero(bias, head * head_dim + dim + half);
    if (head < heads + kv_heads) {
      p.cos = table.cos[std::int64_t{at.position} * half + dim];
      p.sin = table.sin[std::int64_t{at.position} * half + dim];
    }
    return p;
  }
  __device__ void finish(const row_state& at, std::int32_t q, const pair& p, float first, float second) const {
    const std::int32_t half = head_dim / 2, head = q / half, dim = q % half;
    if (head >= heads + 2 * kv_heads) return;
    first += p.first, second += p.second;
    const T low = from_float<T>(first * p.cos - second * p.sin), high = from_float<T>(second * p.cos + first * p.sin);
    if (head < heads) {
      T* const to = y + at.row * y_stride + head * head_dim + dim;
      to[0] = low, to[half] = high;
      return;
    }
    const std::int32_t kv_head = (head - heads) % kv_heads, inside = at.position % block_size;
    const std::int64_t of_head = std::int64_t{head_dim} * block_size;
    T* const keys = kv + (std::int64_t{at.block} * kv_heads + kv_head) * 2 * of_head;
    if (head < heads + kv_heads) {
      keys[dim * block_size + inside] = low;
      keys[(dim + half) * block_size + inside] = high;
    } else {
      keys[of_head + inside * head_dim + dim] = low;
      keys[of_head + inside * head_dim + dim + half] = high;
    }
  }
};

} // namespace troupe::gpu
