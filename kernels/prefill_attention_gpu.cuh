// The kernel of prefill attention. A block stays on its multiprocessor and takes one (tile, KV head) after the other: a warp of the first
// warpgroup brings queries, keys and values into shared memory by tensor copies, the other two warpgroups multiply. Each of these has 64
// lines, a line being a row and one of the heads that share the KV head; keys are taken 128 positions at a time, the last ones first.
// The two warpgroups take turns at starting products, so that one's softmax falls into the other's products (Shah et al., FlashAttention-3,
// arXiv 2407.08608).
#pragma once

#include "kernels/launch.cuh"
#include "kernels/prefill_copies.cuh"

namespace troupe::gpu::prefill {

// What a thread of a multiplying warpgroup knows of its two lines, `half` 0 and 1 (8 lines apart).
template <int HeadDim>
struct lines_state {
  float scores[keys / 2]; // then weights
  float mix[HeadDim / 2];
  std::uint32_t weights[keys / 4]; // in pairs, of the element type
  float top[2], sum[2];
  std::int32_t position[2];
};

__device__ __forceinline__ float power_of_two(float x) {
  float out;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
}

// Scores of positions that a line does not see become -inf.
template <int HeadDim>
__device__ __forceinline__ void mask(lines_state<HeadDim>& l, std::int32_t start, std::int32_t window, std::int32_t lane) {
#pragma unroll
  for (int i = 0; i < keys / 2; ++i) {
    const std::int32_t seen_from = start + i / 4 * 8 + lane % 4 * 2 + i % 2, own = l.position[i % 4 / 2];
    if (seen_from > own || (window > 0 && seen_from <= own - window)) l.scores[i] = minus_infinity;
  }
}

// Scores become weights; returns in `shrink` what earlier sums are to be multiplied by.
template <int HeadDim>
__device__ __forceinline__ void soften(lines_state<HeadDim>& l, float scale_log2, float (&shrink)[2]) {
  float base[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float top = l.top[half];
#pragma unroll
    for (int i = 0; i < keys / 2; i += 4) top = fmaxf(top, fmaxf(l.scores[i + 2 * half], l.scores[i + 2 * half + 1]));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, 2));
    base[half] = top == minus_infinity ? 0.0F : top * scale_log2; // nothing seen yet: all weights are 0
    // Steps in which a line sees nothing change no bit of it: a fused multiply and subtract of equals need not give 0.
    shrink[half] = top == l.top[half] ? 1.0F : power_of_two(l.top[half] * scale_log2 - base[half]);
    l.top[half] = top;
    l.sum[half] *= shrink[half];
  }
#pragma unroll
  for (int i = 0; i < keys / 2; ++i) {
    l.scores[i] = power_of_two(l.scores[i] * scale_log2 - base[i % 4 / 2]);
    l.sum[i % 4 / 2] += l.scores[i];
  }
}

template <class T, int HeadDim>
__device__ __forceinline__ void pack_weights(lines_state<HeadDim>& l) {
#pragma unroll
  for (int i = 0; i < keys / 4; ++i) l.weights[i] = pair_of<T>(l.scores[2 * i], l.scores[2 * i + 1]);
}

// scores = q k^T of a stage of keys.
template <class T, int HeadDim>
__device__ __forceinline__ void score(lines_state<HeadDim>& l, const std::uint16_t (&query)[HeadDim / 64][lines][64],
                                      const std::uint16_t (&key)[keys / piece][HeadDim][piece]) {
  const std::uint64_t a = matrix_at(shared_address(query), 16, 1024, swizzle::bytes_128);
  const std::uint64_t b = matrix_at(shared_address(key), HeadDim * piece * 2, 8 * piece * 2, swizzle::bytes_32);
#pragma unroll
  for (int k = 0; k < HeadDim / 16; ++k)
    wgmma_columns<T>(l.scores, advanced(a, k / 4 * sizeof(query[0]) + k % 4 * 32), advanced(b, k * 16 * piece * 2), k > 0 ? 1 : 0);
}

// mix += weights v of a stage of values.
template <class T, int HeadDim>
__device__ __forceinline__ void gather(lines_state<HeadDim>& l, const std::uint16_t (&value)[HeadDim / 64][keys][64]) {
  const std::uint64_t b = matrix_at(shared_address(value), sizeof(value[0]), 1024, swizzle::bytes_128);
#pragma unroll
  for (int k = 0; k < keys / 16; ++k) wgmma_columns<T>(l.mix, l.weights + 4 * k, advanced(b, k * 16 * 128));
}

// The warpgroups' turns at starting products. Each takes one turn a step of an item, whether it has something to do in it or not.
__device__ __forceinline__ void take_turn(std::int32_t warpgroup) { sync_threads(1 + warpgroup, warpgroups * 128); }
__device__ __forceinline__ void pass_turn(std::int32_t warpgroup) { arrive_threads(2 - warpgroup, warpgroups * 128); }

// A share's part of a line: `lane`s of four hold its dimensions in turn.
template <int HeadDim>
__device__ __forceinline__ void store_part(const share_parts& parts, std::int64_t part, const lines_state<HeadDim>& l, int half,
                                           std::int32_t lane) {
  float* const to = parts.mix + part * HeadDim + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < HeadDim / 2; i += 4) store_two(to + i * 2, l.mix[i + 2 * half], l.mix[i + 2 * half + 1]);
  if (lane % 4 == 0) parts.state[part] = make_float2(l.top[half], l.sum[half]);
}

// One warpgroup's rows of an item. `at` moves on by the item's steps.
template <class T, int HeadDim, bool Shares>
__device__ __forceinline__ void multiply_item(const shape& s, shared_state<HeadDim>& shared, const item& it, ring_place& at,
                                              std::uint32_t query_parity, std::int32_t warpgroup, T* output) {
  const std::int32_t lane = threadIdx.x % 32, first_line = threadIdx.x % 128 / 32 * 16 + lane / 4;
  const std::int32_t rows = min(s.rows, it.tile.rows - warpgroup * s.rows), first_position = it.tile.first_position + warpgroup * s.rows;
  // Steps that this warpgroup's rows see; the others are passed over.
  const std::int32_t low = s.window > 0 ? max(0, first_position - s.window + 1) : 0;
  std::int32_t end = rows > 0 ? (first_position + rows + keys - 1) / keys : it.first, begin = rows > 0 ? low / keys : it.first;
  if constexpr (Shares) end = max(it.first, min(end, it.last)), begin = max(it.first, min(begin, it.last));
  lines_state<HeadDim> l;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    l.position[half] = first_position + min((first_line + 8 * half) / s.group, max(rows - 1, 0));
    l.top[half] = minus_infinity, l.sum[half] = 0;
  }
#pragma unroll
  for (int i = 0; i < HeadDim / 2; ++i) l.mix[i] = 0;

  const auto release = [&](std::uint64_t& barrier) {
    if (lane == 0) mbarrier_arrive(&barrier);
  };
  const auto pass_over = [&] {
    take_turn(warpgroup);
    mbarrier_wait(&shared.key_full[at.stage], at.parity);
    release(shared.key_empty[at.stage]);
    mbarrier_wait(&shared.value_full[at.stage], at.parity);
    release(shared.value_empty[at.stage]);
    pass_turn(warpgroup);
    at.next();
  };
  const auto needs_mask = [&](std::int32_t step) {
    return step * keys + keys - 1 > first_position || (s.window > 0 && step * keys <= first_position + rows - 1 - s.window);
  };

  std::int32_t step = it.last - 1;
  for (; step >= end; --step) pass_over();
  mbarrier_wait(&shared.query_full, query_parity);
  if (begin < end) {
    float shrink[2];
    mbarrier_wait(&shared.key_full[at.stage], at.parity);
    take_turn(warpgroup);
    keep_in_place(l.scores);
    wgmma_begin();
    score<T, HeadDim>(l, shared.query[warpgroup], shared.key[at.stage]);
    wgmma_commit();
    pass_turn(warpgroup);
    wgmma_wait<0>();
    keep_in_place(l.scores);
    release(shared.key_empty[at.stage]);
    if (needs_mask(step)) mask(l, step * keys, s.window, lane);
    soften(l, s.scale_log2, shrink);
    pack_weights<T>(l);
    for (--step; step >= begin; --step) {
      ring_place values = at; // of the step before
      at.next();
      mbarrier_wait(&shared.key_full[at.stage], at.parity);
      take_turn(warpgroup);
      keep_in_place(l.scores);
      keep_in_place(l.mix);
      wgmma_begin();
      score<T, HeadDim>(l, shared.query[warpgroup], shared.key[at.stage]);
      wgmma_commit();
      mbarrier_wait(&shared.value_full[values.stage], values.parity);
      wgmma_begin();
      gather<T, HeadDim>(l, shared.value[values.stage]);
      wgmma_commit();
      pass_turn(warpgroup);
      wgmma_wait<1>();
      keep_in_place(l.scores);
      release(shared.key_empty[at.stage]);
      if (needs_mask(step)) mask(l, step * keys, s.window, lane);
      soften(l, s.scale_log2, shrink);
      wgmma_wait<0>();
      keep_in_place(l.mix);
      release(shared.value_empty[values.stage]);
      pack_weights<T>(l);
#pragma unroll
      for (int i = 0; i < HeadDim / 2; ++i) l.mix[i] *= shrink[i % 4 / 2];
    }
    release(shared.query_empty);
    mbarrier_wait(&shared.value_full[at.stage], at.parity);
    keep_in_place(l.mix);
    wgmma_begin();
    gather<T, HeadDim>(l, shared.value[at.stage]);
    wgmma_commit();
    wgmma_wait<0>();
    keep_in_place(l.mix);
    release(shared.value_empty[at.stage]);
    at.next();
  } else {
    release(shared.query_empty);
  }
  for (; step >= it.first; --step) pass_over();

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    l.sum[half] += __shfl_xor_sync(0xffffffffU, l.sum[half], 1);
    l.sum[half] += __shfl_xor_sync(0xffffffffU, l.sum[half], 2);
    const std::int32_t line = first_line + 8 * half, row = line / s.group;
    if (row >= rows) continue;
    if constexpr (Shares) {
      const std::int32_t own = l.position[half], seen_from = s.window > 0 ? max(0, own - s.window + 1) : 0;
      if (it.share < share_of(seen_from) || it.share > share_of(own)) continue;
      if (!is_in_one_share(seen_from, own)) {
        const std::int32_t head = it.head * s.group + line % s.group;
        store_part(s.parts, s.parts.at(it.share, it.tile_index, s.items / s.kv_heads, warpgroup * s.rows + row, head), l, half, lane);
        continue;
      }
    }
    const float inverse = 1.0F / l.sum[half];
    T* const to = output + (it.tile.first_row + warpgroup * s.rows + row) * s.output_stride +
                  (it.head * s.group + line % s.group) * HeadDim + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < HeadDim / 2; i += 4)
      *reinterpret_cast<std::uint32_t*>(to + i * 2) = pair_of<T>(l.mix[i + 2 * half] * inverse, l.mix[i + 2 * half + 1] * inverse);
  }
}

template <class T, int HeadDim, bool Shares>
__global__ void __launch_bounds__(threads, 1) kernel(const __grid_constant__ shape s, T* output) {
  extern __shared__ std::byte raw[];
  auto& shared = *reinterpret_cast<shared_state<HeadDim>*>((reinterpret_cast<std::uintptr_t>(raw) + 1023) / 1024 * 1024);
  if (threadIdx.x == 0) {
    constexpr std::uint32_t warps = warpgroups * 4;
    mbarrier_init(&shared.query_full, 1);
    mbarrier_init(&shared.query_empty, warps);
    mbarrier_init(&shared.torn_full, 1);
    for (int i = 0; i < stages; ++i) {
      mbarrier_init(&shared.key_full[i], 1);
      mbarrier_init(&shared.key_empty[i], warps);
      mbarrier_init(&shared.value_full[i], 1);
      mbarrier_init(&shared.value_empty[i], warps);
    }
    fence_barrier_init();
    prefetch(s.query);
    prefetch(s.key);
    prefetch(s.value);
  }
  __syncthreads();
  let_next_start();
  wait_for_previous();
  if (threadIdx.x < 128) {
    give_registers<copy_registers>();
    if (threadIdx.x < 32) copy<HeadDim, Shares>(s, shared, static_cast<std::int32_t>(threadIdx.x));
  } else {
    take_registers<product_registers>();
    const std::int32_t warpgroup = static_cast<std::int32_t>(threadIdx.x) / 128 - 1;
    ring_place at;
    std::uint32_t query_parity = 0;
    if (warpgroup == 1) pass_turn(warpgroup); // the first warpgroup begins
    for_each_item<Shares>(s, [&](const item& it) {
      multiply_item<T, HeadDim, Shares>(s, shared, it, at, query_parity, warpgroup, output);
      query_parity ^= 1;
    });
    if (warpgroup == 0) take_turn(warpgroup); // so that none is left over
  }
}

constexpr int join_threads = 128;

// The results of lines that several shares have parts of, which are added up in order of positions. A block: a row of a tile (blockIdx.x)
// and some heads; a thread: four dimensions.
template <class T, int HeadDim>
__global__ void __launch_bounds__(join_threads) join_kernel(const prefill_tile* tiles, std::int32_t tile_count, share_parts parts,
                                                            std::int32_t window, float scale_log2, T* output, std::int64_t output_stride) {
  constexpr int of_head = HeadDim / 4;
  let_next_start();
  wait_for_previous();
  const std::int32_t index = static_cast<std::int32_t>(blockIdx.x) / parts.tile_rows,
                     row = static_cast<std::int32_t>(blockIdx.x) % parts.tile_rows;
  const std::int32_t head = static_cast<std::int32_t>(blockIdx.y * (join_threads / of_head) + threadIdx.x / of_head);
  const std::int32_t dim = static_cast<std::int32_t>(threadIdx.x) % of_head * 4;
  const prefill_tile tile = tiles[index];
  const std::int32_t own = tile.first_position + row, low = window > 0 ? max(0, own - window + 1) : 0;
  if (row >= tile.rows || head >= parts.heads || is_in_one_share(low, own)) return;
  const std::int32_t first = share_of(low), last = share_of(own);
  float top = minus_infinity;
  for (std::int32_t share = first; share <= last; ++share) top = fmaxf(top, parts.state[parts.at(share, index, tile_count, row, head)].x);
  float sum = 0, mix[4] = {};
#pragma unroll 4
  for (std::int32_t share = first; share <= last; ++share) {
    const std::int64_t part = parts.at(share, index, tile_count, row, head);
    const float2 state = parts.state[part];
    const float4 values = *reinterpret_cast<const float4*>(parts.mix + part * HeadDim + dim);
    const float scale = power_of_two((state.x - top) * scale_log2);
    sum += state.y * scale;
    mix[0] += values.x * scale, mix[1] += values.y * scale, mix[2] += values.z * scale, mix[3] += values.w * scale;
  }
  const float inverse = 1.0F / sum;
  T* const to = output + (tile.first_row + row) * output_stride + head * HeadDim + dim;
  store_two(to, mix[0] * inverse, mix[1] * inverse);
  store_two(to + 2, mix[2] * inverse, mix[3] * inverse);
}

} // namespace troupe::gpu::prefill
