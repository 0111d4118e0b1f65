// What happens to the sums of a product. An epilogue sees two outputs at a time, `first` and `second`, `distance` rows of W apart: the
// halves of a rotating head, a gate and its up, or just two neighbours 8 rows apart. Pair q of a product has the rows
// q / distance * 2 distance + q % distance and the one `distance` behind it.
#pragma once

#include "kernels/divider.hpp"
#include "kernels/half_types.cuh"
#include "kernels/kept_load.cuh"
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
// the product is. early_two() and finish_two() do the same for pair q, an even number, and the next one; `aligned` says that two neighbours
// of y and residual can be reached at once.
template <class T, class Out>
struct store_epilogue {
  static constexpr bool plain = true; // the pairs' rows are W's own order
  Out* y;
  std::int64_t y_stride;
  std::int32_t out_rows;
  const T* bias;     // or null
  const T* residual; // or null
  bool aligned;

  struct row_state {
    std::int32_t row;
  };
  struct pair {
    float first, second;
  };
  struct two_pairs {
    float2 first, second;
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
  __device__ float2 addends(std::int32_t row, std::int32_t o) const {
    if (bias != nullptr || !aligned || o + 1 >= out_rows) return make_float2(addend(row, o), addend(row, o + 1));
    return load_two(residual + row * y_stride + o);
  }
  __device__ two_pairs early_two(const row_state& at, std::int32_t q) const {
    if (bias == nullptr && residual == nullptr) return {};
    const std::int32_t o = first_row_of(q, 8);
    return {addends(at.row, o), addends(at.row, o + 8)};
  }
  __device__ void put_two(std::int32_t row, std::int32_t o, float low, float high) const {
    if (aligned && o + 1 < out_rows) return store_two(y + row * y_stride + o, low, high);
    put(row, o, low), put(row, o + 1, high);
  }
  __device__ void finish_two(const row_state& at, std::int32_t q, const two_pairs& add, float2 first, float2 second) const {
    const std::int32_t o = first_row_of(q, 8);
    put_two(at.row, o, first.x + add.first.x, first.y + add.first.y);
    put_two(at.row, o + 8, second.x + add.second.x, second.y + add.second.y);
  }
};

// Stores logits, and of each row what every warp found best: for the path of 1 or 2 rows, where a lane finishes a row.
struct logits_epilogue {
  float* y;
  std::int64_t y_stride;
  std::int32_t out_rows, vocab;
  logit_top* tops;

  struct row_state {
    std::int32_t row;
    logit_top top;
    bool is_bad;
  };
  struct nothing {};
  __device__ row_state of(std::int32_t row) const { return {row, {-INFINITY, 0x7fffffff}, false}; }
  __device__ nothing early(const row_state&, std::int32_t) const { return {}; }
  __device__ void put(row_state& at, std::int32_t o, float value) const {
    if (o >= out_rows) return;
    y[at.row * y_stride + o] = value;
    if (o >= vocab) return;
    at.is_bad = at.is_bad || !(value < INFINITY);
    if (value > at.top.logit || (value == at.top.logit && o < at.top.id)) at.top = {value, o};
  }
  __device__ void finish(row_state& at, std::int32_t q, nothing, float first, float second) const {
    const std::int32_t o = first_row_of(q, 8);
    put(at, o, first), put(at, o + 8, second);
  }
  // Behind the last pair: `part` is this warp's number.
  __device__ void leave(const row_state& at, std::int32_t part) const {
    tops[std::int64_t{at.row} * most_logit_tops + part] = {at.top.logit, at.is_bad ? -1 : at.top.id};
  }
};

template <class T>
struct swiglu_epilogue {
  static constexpr bool plain = false;
  T* y;
  std::int64_t y_stride;
  std::int32_t gates; // a multiple of 8
  bool aligned;

  struct row_state {
    std::int32_t row;
  };
  struct nothing {};
  __device__ static float gated(float gate, float up) { return gate / (1.0F + __expf(-gate)) * up; }
  __device__ row_state of(std::int32_t row) const { return {row}; }
  __device__ nothing early(const row_state&, std::int32_t) const { return {}; }
  __device__ void finish(const row_state& at, std::int32_t q, nothing, float gate, float up) const {
    if (q < gates) y[at.row * y_stride + q] = from_float<T>(gated(gate, up));
  }
  __device__ nothing early_two(const row_state&, std::int32_t) const { return {}; }
  __device__ void finish_two(const row_state& at, std::int32_t q, nothing, float2 gate, float2 up) const {
    if (q >= gates) return;
    T* const to = y + at.row * y_stride + q;
    const float low = gated(gate.x, up.x), high = gated(gate.y, up.y);
    if (aligned)
      store_two(to, low, high);
    else
      to[0] = from_float<T>(low), to[1] = from_float<T>(high);
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
  bool aligned;
  const std::int32_t* tables; // or null
  divider by_half, by_block;  // head_dim / 2, block_size

  struct row_state {
    std::int32_t row, position, block, inside; // of the KV cache
  };
  struct pair {
    float cos, sin, first, second;
  };
  struct two_pairs {
    float2 cos, sin, first, second;
  };
  __device__ row_state of(std::int32_t row) const {
    const std::int32_t position = load_kept(places.positions + row);
    const std::int64_t own = tables == nullptr ? row : tables[row];
    return {row, position, load_kept(places.block_tables + own * places.table_stride + by_block.quotient(position)),
            by_block.remainder(position)};
  }
  __device__ pair early(const row_state& at, std::int32_t q) const {
    const std::int32_t half = head_dim / 2, head = by_half.quotient(q), dim = q - head * half;
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
    const std::int32_t half = head_dim / 2, head = by_half.quotient(q), dim = q - head * half;
    if (head >= heads + 2 * kv_heads) return;
    first += p.first, second += p.second;
    const T low = from_float<T>(first * p.cos - second * p.sin), high = from_float<T>(second * p.cos + first * p.sin);
    if (head < heads) {
      T* const to = y + at.row * y_stride + head * head_dim + dim;
      to[0] = low, to[half] = high;
      return;
    }
    const std::int64_t of_head = std::int64_t{head_dim} * block_size;
    if (head < heads + kv_heads) {
      T* const keys = part_of(at, head - heads) + dim * block_size + at.inside;
      keys[0] = low, keys[half * block_size] = high;
    } else {
      T* const values = part_of(at, head - heads - kv_heads) + of_head + at.inside * head_dim + dim;
      values[0] = low, values[half] = high;
    }
  }
  // Where the row's block has the keys of a KV head; its values are behind them.
  __device__ T* part_of(const row_state& at, std::int32_t kv_head) const {
    return kv + (std::int64_t{at.block} * kv_heads + kv_head) * 2 * head_dim * block_size;
  }
  __device__ two_pairs early_two(const row_state& at, std::int32_t q) const {
    const std::int32_t half = head_dim / 2, head = by_half.quotient(q), dim = q - head * half;
    two_pairs p{{1.0F, 1.0F}, {}, {}, {}};
    if (head >= heads + 2 * kv_heads) return p;
    if (bias != nullptr) {
      const T* const of = bias + head * head_dim + dim;
      p.first = make_float2(to_float(of[0]), to_float(of[1]));
      p.second = make_float2(to_float(of[half]), to_float(of[half + 1]));
    }
    if (head < heads + kv_heads) {
      const std::int64_t angle = std::int64_t{at.position} * half + dim;
      p.cos = *reinterpret_cast<const float2*>(table.cos + angle), p.sin = *reinterpret_cast<const float2*>(table.sin + angle);
    }
    return p;
  }
  __device__ void finish_two(const row_state& at, std::int32_t q, const two_pairs& p, float2 first, float2 second) const {
    const std::int32_t half = head_dim / 2, head = by_half.quotient(q), dim = q - head * half;
    if (head >= heads + 2 * kv_heads) return;
    first.x += p.first.x, first.y += p.first.y, second.x += p.second.x, second.y += p.second.y;
    const float2 low = make_float2(first.x * p.cos.x - second.x * p.sin.x, first.y * p.cos.y - second.y * p.sin.y);
    const float2 high = make_float2(second.x * p.cos.x + first.x * p.sin.x, second.y * p.cos.y + first.y * p.sin.y);
    if (head >= heads && head < heads + kv_heads) {
      T* const keys = part_of(at, head - heads) + dim * block_size + at.inside;
      keys[0] = from_float<T>(low.x), keys[block_size] = from_float<T>(low.y);
      keys[half * block_size] = from_float<T>(high.x), keys[(half + 1) * block_size] = from_float<T>(high.y);
      return;
    }
    T* const to = head < heads ? y + at.row * y_stride + head * head_dim + dim
                               : part_of(at, head - heads - kv_heads) + head_dim * block_size + at.inside * head_dim + dim;
    if (aligned) {
      store_two(to, low.x, low.y), store_two(to + half, high.x, high.y);
    } else {
      to[0] = from_float<T>(low.x), to[1] = from_float<T>(low.y);
      to[half] = from_float<T>(high.x), to[half + 1] = from_float<T>(high.y);
    }
  }
};

} // namespace troupe::gpu
