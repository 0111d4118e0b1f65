// What prefill attention's warps share: shapes, shared memory, the order of work, and the copying warp.
#pragma once

#include "kernels/half_types.cuh"
#include "kernels/prefill_attention_gpu.hpp"
#include "kernels/tensor_copies.cuh"
#include "kernels/wgmma.cuh"

namespace troupe::gpu::prefill {

constexpr int keys = 128;     // positions that are taken at once
constexpr int piece = 16;     // positions that lie together in a block of the cache, whatever its size
constexpr int stages = 2;     // pieces of work that copies are ahead
constexpr int lines = 64;     // of a warpgroup
constexpr int warpgroups = 2; // that multiply
constexpr int threads = (1 + warpgroups) * 128;
constexpr int copy_registers = 40, product_registers = 232;
constexpr float minus_infinity = -INFINITY;

// Where shares of positions begin: multiples of `keys`, close together at first, so that a short row too is worked on in several places.
__host__ __device__ constexpr std::int32_t share_begin(std::int32_t share) {
  return share < 16 ? share * 256 : share < 44 ? 4096 + (share - 16) * 1024 : 32768 + (share - 44) * 4096;
}
__host__ __device__ constexpr std::int32_t share_of(std::int32_t position) {
  return position < 4096 ? position / 256 : position < 32768 ? 16 + (position - 4096) / 1024 : 44 + (position - 32768) / 4096;
}
// Whether a line gets its result in one piece.
__host__ __device__ constexpr bool is_in_one_share(std::int32_t low, std::int32_t position) { return share_of(low) == share_of(position); }

// With shares: what a line has of each, before it is divided by the sum. A part is a line and a share.
struct share_parts {
  float* mix;                    // [shares][tiles][tile_rows][heads][head_dim]
  float2* state;                 // the same without head_dim: the largest score, and the sum of weights
  std::int32_t tile_rows, heads; // most rows of a tile
  std::int32_t shares;           // of the longest line; at most so many where `last_position` says it
  const std::int32_t* last_position;

  __device__ std::int32_t count() const { return last_position != nullptr ? share_of(*last_position) + 1 : shares; }
  __device__ std::int64_t at(std::int32_t share, std::int32_t tile, std::int32_t tiles, std::int32_t row, std::int32_t head) const {
    return ((static_cast<std::int64_t>(share) * tiles + tile) * tile_rows + row) * heads + head;
  }
};

struct shape {
  CUtensorMap query, key, value;
  const prefill_tile* tiles;
  std::int32_t items; // tiles times KV heads
  share_parts parts;  // where positions are cut
  std::int32_t kv_heads, group;
  std::int32_t rows; // that a warpgroup's lines hold: lines / group
  std::int32_t block_size, window;
  const std::int32_t* tables;
  std::int64_t table_stride;
  std::int64_t output_stride;
  float scale_log2; // scale * log2(e): weights are powers of two
};

// Panels of 64 dimensions, 128 bytes a line, as the 128-byte swizzle wants them; keys in groups of 16 positions, as they lie in the cache.
template <int HeadDim>
struct alignas(1024) shared_state {
  std::uint16_t query[warpgroups][HeadDim / 64][lines][64];
  std::uint16_t key[stages][keys / piece][HeadDim][piece];
  std::uint16_t value[stages][HeadDim / 64][keys][64];
  std::uint64_t query_full, query_empty, torn_full;
  std::uint64_t key_full[stages], key_empty[stages], value_full[stages], value_empty[stages];
};

// Where a ring of barriers stands.
struct ring_place {
  std::int32_t stage = 0;
  std::uint32_t parity = 0;
  __device__ void next() {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
};

// One (tile, KV head), or a share of it. Positions low .. tile.end_position - 1 may be read.
struct item {
  prefill_tile tile;
  std::int32_t head, low, first, last; // key steps first .. last - 1 are taken
  std::int32_t share, tile_index;
  __device__ bool is_empty() const { return first >= last; }
};

template <bool Shares>
__device__ __forceinline__ item item_at(const shape& s, std::int32_t index) {
  item out;
  out.share = Shares ? index / s.items : 0;
  index -= out.share * s.items;
  out.tile_index = index / s.kv_heads;
  out.tile = s.tiles[out.tile_index];
  out.head = index % s.kv_heads;
  out.low = s.window > 0 ? max(0, out.tile.first_position - s.window + 1) : 0;
  out.first = out.low / keys;
  out.last = out.tile.rows > 0 ? (out.tile.first_position + out.tile.rows + keys - 1) / keys : out.first;
  if constexpr (Shares) {
    out.first = max(out.first, share_begin(out.share) / keys);
    out.last = min(out.last, share_begin(out.share + 1) / keys);
  }
  return out;
}

// The items of this block: there and back over the blocks, as the longest come first. Calls body(item) for those with something to do.
template <bool Shares, class Body>
__device__ __forceinline__ void for_each_item(const shape& s, const Body& body) {
  const std::int32_t items = Shares ? s.items * s.parts.count() : s.items;
  const std::int32_t blocks = static_cast<std::int32_t>(gridDim.x), block = static_cast<std::int32_t>(blockIdx.x);
  bool back = false;
  for (std::int32_t start = 0; start < items; start += blocks, back = !back) {
    const std::int32_t index = start + (back ? blocks - 1 - block : block);
    if (index >= items) continue;
    const item it = item_at<Shares>(s, index);
    if (!it.is_empty()) body(it);
  }
}

// Puts zeros where values of the span's last piece lie behind its end: a weight of 0 does not undo a NaN. By the copying warp.
template <int HeadDim>
__device__ __forceinline__ void clear_behind(std::uint16_t (&value)[HeadDim / 64][keys][64], std::int32_t end, std::int32_t lane) {
  const std::int32_t behind = (piece - end % piece) * 8; // 16 bytes each
  for (std::int32_t i = lane; i < HeadDim / 64 * behind; i += 32)
    reinterpret_cast<uint4*>(value[i / behind][end])[i % behind] = make_uint4(0, 0, 0, 0);
  fence_for_copies();
  __syncwarp();
}

// The copying warp. Pieces that no row sees arrive as zeros: they are asked for outside the cache.
template <int HeadDim, bool Shares>
__device__ void copy(const shape& s, shared_state<HeadDim>& shared, std::int32_t lane) {
  constexpr int panels = HeadDim / 64, pieces = keys / piece;
  constexpr std::uint32_t step_bytes = keys * HeadDim * 2;
  ring_place at;
  std::uint32_t query_parity = 0, torn_parity = 0;
  for_each_item<Shares>(s, [&](const item& it) {
    mbarrier_wait(&shared.query_empty, query_parity ^ 1);
    query_parity ^= 1;
    if (lane == 0) {
      mbarrier_expect(&shared.query_full, static_cast<std::uint32_t>(warpgroups * s.rows * s.group * HeadDim * 2));
      for (int w = 0; w < warpgroups; ++w) {
        for (int p = 0; p < panels; ++p)
          tensor_copy(shared.query[w][p], s.query, {p * 64, it.head * s.group, it.tile.first_row + w * s.rows}, &shared.query_full);
      }
    }
    const std::int32_t* table = s.tables + it.tile.table * s.table_stride;
    for (std::int32_t step = it.last - 1; step >= it.first; --step, at.next()) {
      // Lane l sees to piece l % 8; for values to its panel l / 8 too.
      const std::int32_t mine = lane % pieces, position = step * keys + mine * piece;
      const bool there = position + piece > it.low && position < it.tile.end_position;
      const std::int32_t place = there ? (table[position / s.block_size] * s.kv_heads + it.head) * 2 : -2, inside = position % s.block_size;
      mbarrier_wait(&shared.key_empty[at.stage], at.parity ^ 1);
      if (lane == 0) mbarrier_expect(&shared.key_full[at.stage], step_bytes);
      __syncwarp();
      if (lane < pieces) tensor_copy(shared.key[at.stage][mine], s.key, {inside, 0, place}, &shared.key_full[at.stage]);
      mbarrier_wait(&shared.value_empty[at.stage], at.parity ^ 1);
      const std::int32_t end = it.tile.end_position - step * keys; // within the step
      const bool torn = end < keys && end % piece != 0;
      std::uint64_t& arrival = torn ? shared.torn_full : shared.value_full[at.stage];
      if (lane == 0) mbarrier_expect(&arrival, step_bytes);
      __syncwarp();
      if (lane < panels * pieces) {
        const std::int32_t panel = lane / pieces;
        tensor_copy(shared.value[at.stage][panel][mine * piece], s.value, {panel * 64, inside, place + 1}, &arrival);
      }
      if (!torn) continue;
      mbarrier_wait(&shared.torn_full, torn_parity);
      torn_parity ^= 1;
      clear_behind<HeadDim>(shared.value[at.stage], end, lane);
      if (lane == 0) mbarrier_arrive(&shared.value_full[at.stage]);
    }
  });
}

} // namespace troupe::gpu::prefill
