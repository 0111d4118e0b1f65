// A row of logits in the shared memory of a cluster of blocks, and what is asked of it together: sums, the best ids, the id at which a sum
// is reached. All functions are called by all threads of all blocks of the cluster unless they say otherwise; block `rank` holds the ids
// from rank * slice on.
#pragma once

#include <cooperative_groups.h>

#include <cstdint>

#include "core/ids.hpp"
#include "kernels/half_types.cuh"
#include "kernels/linear_gpu.hpp"

namespace troupe::gpu::sampling {

constexpr int ranks = 8; // blocks of a cluster
constexpr int warps = 16;
constexpr int threads = warps * 32;
constexpr int bins = 2048;                // a digit of 11 bits
constexpr int most_candidates = 512;      // that the first block takes for itself; one a thread
constexpr int groups = ranks * warps * 2; // half warps, whose largest logits bound the k-th best from below
constexpr unsigned everyone = 0xffffffffU;

using mass = unsigned long long; // of weights: 2^40 is the best id's

struct candidate {
  float logit;
  token_id id;
  // Larger logits first, lower ids first among equals.
  __device__ bool is_better(const candidate& other) const { return logit != other.logit ? logit > other.logit : id < other.id; }
};

struct shared_state {
  std::uint32_t histogram[3][bins]; // of a mass's bits 0 to 15, 16 to 31, and the others: the sums fit, and adding them is one instruction
  mass merged[bins / ranks];        // of all blocks, this block's share of the bins
  mass sums[warps], parts[warps];
  double totals[warps];
  candidate tops[warps];
  float group_tops[groups];
  float bound;
  std::int32_t found;
  mass before;
  std::int32_t count;
  candidate own[most_candidates], all[most_candidates], sorted[most_candidates]; // the last two in the first block
  mass masses[most_candidates];
  alignas(16) std::byte exchanged[2][ranks][16];
};

// Orders as the logits do; both zeros are the same.
__device__ __forceinline__ std::uint32_t key_of(float logit) {
  const std::uint32_t bits = __float_as_uint(logit + 0.0F);
  return bits ^ ((bits & 0x80000000U) != 0 ? 0xffffffffU : 0x80000000U);
}

template <class V>
__device__ __forceinline__ V warp_total(V x) {
  for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(everyone, x, distance);
  return x;
}

// The sum over this lane and those below it.
__device__ __forceinline__ mass warp_scan(mass x) {
  for (int distance = 1; distance < 32; distance *= 2) {
    const mass lower = __shfl_up_sync(everyone, x, distance);
    if (static_cast<int>(threadIdx.x % 32) >= distance) x += lower;
  }
  return x;
}

struct crossing {
  std::int32_t index = 0; // the first with measure(0) + ... + measure(index) > goal
  std::int32_t is_here = 0;
  mass before = 0; // measure(0) + ... + measure(index - 1)
};

// The ids that may be drawn: those whose key is above `key`, and of those with it the ones up to `last_id`.
struct cut {
  std::uint32_t key = 0;
  std::int32_t last_id = 0;
  __device__ bool keeps(std::uint32_t k, std::int32_t id) const { return k > key || (k == key && id <= last_id); }
};

class row {
  // What every block passed, by rank, until the next but one exchange.
  template <class V>
  class exchanged {
   public:
    __device__ explicit exchanged(const std::byte (*places)[16]) : places_(places) {}
    __device__ const V& operator[](int rank) const { return *reinterpret_cast<const V*>(places_[rank]); }

   private:
    const std::byte (*places_)[16];
  };
  // `mine` is the same in all threads of a block; at most 16 bytes.
  template <class V>
  __device__ exchanged<V> exchange(const V& mine) {
    static_assert(sizeof(V) <= 16);
    std::byte(*const places)[16] = shared_.exchanged[turn_];
    if (threadIdx.x < ranks) *reinterpret_cast<V*>(cluster_.map_shared_rank(places[rank_], threadIdx.x)) = mine;
    sync();
    turn_ ^= 1; // the next exchange is over only when all blocks have read this one
    return exchanged<V>(places);
  }

 public:
  __device__ row(float* logits, shared_state& shared, std::int32_t vocab, std::int32_t slice)
      : logits_(logits),
        shared_(shared),
        vocab_(vocab),
        slice_(slice),
        cluster_(cooperative_groups::this_cluster()),
        rank_(static_cast<std::int32_t>(cluster_.block_rank())),
        first_(rank_ * slice),
        count_(max(0, min(slice, vocab - rank_ * slice))) {
    cluster_.barrier_arrive(); // load() waits: all blocks run before one writes to another
  }

  __device__ std::int32_t rank() const { return rank_; }
  __device__ std::int32_t first() const { return first_; } // id
  __device__ std::int32_t count() const { return count_; } // ids of this block
  __device__ std::int32_t vocab() const { return vocab_; }
  __device__ float& operator[](std::int32_t i) { return logits_[i]; } // id first() + i
  __device__ shared_state& shared() { return shared_; }
  __device__ void sync() { cluster_.sync(); }
  __device__ std::int32_t slice() const { return slice_; }
  // The first block's value.
  template <class V>
  __device__ V from_first(const V& mine) {
    return exchange(mine)[0];
  }

  // Fills the slice from `from`, the whole row, and finds the best id; false when a logit is NaN or +inf, or none is finite.
  __device__ bool load(const float* from, candidate& top) {
    from += first_;
    top = {-INFINITY, vocab_};
    int bad = 0;
    std::int32_t done = 0;
    if (reinterpret_cast<std::uintptr_t>(from) % 16 == 0) {
      done = count_ / 4 * 4;
      constexpr int batch = 8; // loads under way
      for (std::int32_t start = threadIdx.x * 4; start < done; start += batch * threads * 4) {
        float4 x[batch];
#pragma unroll
        for (int k = 0; k < batch; ++k) {
          const std::int32_t i = start + k * threads * 4;
          x[k] = i < done ? *reinterpret_cast<const float4*>(from + i) : float4{-INFINITY, -INFINITY, -INFINITY, -INFINITY};
        }
#pragma unroll
        for (int k = 0; k < batch; ++k) {
          const std::int32_t i = start + k * threads * 4;
          if (i < done) *reinterpret_cast<float4*>(logits_ + i) = x[k];
          look_at(x[k].x, i, top, bad), look_at(x[k].y, i + 1, top, bad), look_at(x[k].z, i + 2, top, bad),
              look_at(x[k].w, i + 3, top, bad);
        }
      }
    }
    for (std::int32_t i = done + threadIdx.x; i < count_; i += threads) look_at(logits_[i] = from[i], i, top, bad);
    cluster_.barrier_wait();
    return agree(top, bad);
  }
  // The same from the best of some ids each, by the first block alone and without the slice: all that is asked of the row then is the best
  // id, and the other blocks leave().
  __device__ bool load_tops(const logit_top* tops, std::int32_t count, candidate& top) {
    constexpr int batch = most_logit_tops / threads;
    static_assert(batch * threads == most_logit_tops);
    logit_top some[batch];
#pragma unroll
    for (int k = 0; k < batch; ++k) {
      const std::int32_t i = k * threads + static_cast<std::int32_t>(threadIdx.x);
      some[k] = i < count ? tops[i] : logit_top{-INFINITY, vocab_};
    }
    top = {-INFINITY, vocab_};
    int bad = 0;
#pragma unroll
    for (int k = 0; k < batch; ++k) {
      bad |= some[k].id < 0;
      const candidate other{some[k].logit, some[k].id};
      if (other.is_better(top)) top = other;
    }
    agree_in_block(top, bad);
    leave();
    return bad == 0 && top.logit > -INFINITY;
  }
  // Instead of a load; no block calls anything of the cluster's after it.
  __device__ void leave() { cluster_.barrier_wait(); }
  // The same for what the slice holds now.
  __device__ bool find_top(candidate& top) {
    top = {-INFINITY, vocab_};
    int bad = 0;
    for (std::int32_t i = threadIdx.x; i < count_; i += threads) look_at(logits_[i], i, top, bad);
    return agree(top, bad);
  }

  // Sum of measure(i) over all ids.
  template <class V, class Measure>
  __device__ V total(V (&scratch)[warps], const Measure& measure) {
    decltype(measure(0)) own = 0; // f32 for a thread's few, where f64 is wanted of all
    for (std::int32_t i = threadIdx.x; i < count_; i += threads) own += measure(i);
    V sum = warp_total(static_cast<V>(own));
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int i = 0; i < warps; ++i) sum += scratch[i];
    const exchanged<V> all = exchange(sum);
    sum = 0;
    for (int i = 0; i < ranks; ++i) sum += all[i];
    return sum;
  }

  // Walks measure(0 .. count-1) of each block, block after block; goal_of(total) must be below the total. The index counts `step` a block.
  template <class Measure, class Goal>
  __device__ crossing walk(std::int32_t count, std::int32_t step, const Measure& measure, const Goal& goal_of) {
    const std::int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const std::int32_t chunk = (count + warps - 1) / warps, begin = min(count, warp * chunk), end = min(count, begin + chunk);
    mass sum = 0, total = 0, of_block = 0, reached = 0;
    for (std::int32_t i = begin + lane; i < end; i += 32) sum += measure(i);
    sum = warp_total(sum);
    if (lane == 0) shared_.sums[warp] = sum;
    __syncthreads();
    for (int i = 0; i < warps; ++i) of_block += shared_.sums[i];
    const exchanged<mass> all = exchange(of_block);
    for (int i = 0; i < ranks; ++i) {
      total += all[i];
      if (i < rank_) reached += all[i];
    }
    const mass goal = goal_of(total);
    crossing mine;
    if (reached <= goal && goal < reached + of_block) { // the whole block
      std::int32_t at = 0;                              // the warp whose chunk it is
      for (; goal >= reached + shared_.sums[at]; ++at) reached += shared_.sums[at];
      find_in_block(min(count, at * chunk), min(count, at * chunk + chunk), measure, goal, reached);
      mine = {rank_ * step + shared_.found, 1, shared_.before};
    }
    const exchanged<crossing> found = exchange(mine);
    for (int i = 0; i < ranks; ++i) {
      if (found[i].is_here != 0) mine = found[i];
    }
    return mine;
  }

  // Best keys first, the key at which the sum of measure(i, key) first exceeds `goal`, and the sum before it: 11, 11 and 10 bits at a time,
  // without a sort. Ids for which measure is 0 do not count.
  template <class Measure>
  __device__ std::uint32_t select_key(const Measure& measure, mass goal, mass& before) {
    constexpr std::int32_t share = bins / ranks;
    std::uint32_t key = 0;
    before = 0;
    for (int shift = 21; shift >= 0; shift -= shift == 21 ? 11 : 10) {
      const int width = shift == 0 ? 10 : 11, above = shift + width;
      const std::int32_t last = (1 << width) - 1;
      for (int i = threadIdx.x; i < 3 * bins; i += threads) shared_.histogram[0][i] = 0;
      __syncthreads();
      for (std::int32_t i = threadIdx.x; i < count_; i += threads) {
        const std::uint32_t k = key_of(logits_[i]);
        if (above < 32 && (k >> above) != (key >> above)) continue;
        const mass m = measure(i, k);
        const std::uint32_t bin = k >> shift & static_cast<std::uint32_t>(last);
        for (int part = 0; part < 3; ++part) {
          const auto bits = static_cast<std::uint32_t>(part < 2 ? m >> 16 * part & 0xffffU : m >> 32);
          if (bits != 0) atomicAdd(&shared_.histogram[part][bin], bits);
        }
      }
      sync();
      if (threadIdx.x < share) {
        const std::int32_t bin = last - (rank_ * share + static_cast<std::int32_t>(threadIdx.x));
        mass sum = 0;
        for (int i = 0; i < 3 * ranks && bin >= 0; ++i)
          sum += mass{cluster_.map_shared_rank(shared_.histogram[i / ranks], i % ranks)[bin]} << 16 * (i / ranks);
        shared_.merged[threadIdx.x] = sum;
      }
      __syncthreads();
      const mass left = goal - before;
      const crossing at = walk(
          share, share, [&](std::int32_t i) { return shared_.merged[i]; }, [left](mass) { return left; });
      key |= static_cast<std::uint32_t>(last - at.index) << shift;
      before += at.before;
    }
    return key;
  }

  // The `k` best ids.
  __device__ cut best(std::int32_t k) {
    mass before = 0;
    cut out;
    out.key = select_key([](std::int32_t, std::uint32_t) -> mass { return 1; }, static_cast<mass>(k) - 1, before);
    const auto equal = [&](std::int32_t i) -> mass { return key_of(logits_[i]) == out.key ? 1 : 0; };
    const mass left = static_cast<mass>(k) - before - 1;
    out.last_id = walk(count_, slice_, equal, [left](mass) { return left; }).index;
    return out;
  }

  // Some of the best ids, at least the `k` best ones (k <= most_candidates, k <= vocab), best first in the first block's shared().sorted;
  // how many.
  __device__ std::int32_t collect_best(std::int32_t k) {
    std::int32_t n = most_candidates + 1;
    if (k <= groups * 3 / 4) { // not more than k groups hold the k best: the k-th largest of the groups' tops is not above the k-th best
      const float bound = kth_group_top(k);
      n = collect([&](std::int32_t i) { return logits_[i] >= bound; });
    }
    if (n <= most_candidates) return n;
    const cut kept = best(k);
    return collect([&](std::int32_t i) { return kept.keeps(key_of(logits_[i]), first_ + i); });
  }

 private:
  __device__ void look_at(float x, std::int32_t i, candidate& top, int& bad) const { // i grows
    bad |= !(x < INFINITY);
    if (x > top.logit) top = {x, first_ + i};
  }
  __device__ bool agree(candidate& top, int bad) {
    agree_in_block(top, bad);
    struct verdict {
      candidate top;
      std::int32_t bad;
    };
    const exchanged<verdict> all = exchange(verdict{top, bad});
    for (int i = 0; i < ranks; ++i) {
      bad |= all[i].bad;
      if (all[i].top.is_better(top)) top = all[i].top;
    }
    return bad == 0 && top.logit > -INFINITY;
  }
  __device__ void agree_in_block(candidate& top, int& bad) {
    for (int distance = 16; distance > 0; distance /= 2) {
      const candidate other{__shfl_xor_sync(everyone, top.logit, distance), __shfl_xor_sync(everyone, top.id, distance)};
      if (other.is_better(top)) top = other;
    }
    if (threadIdx.x % 32 == 0) shared_.tops[threadIdx.x / 32] = top;
    bad = __syncthreads_or(bad);
    for (int i = 0; i < warps; ++i) {
      if (shared_.tops[i].is_better(top)) top = shared_.tops[i];
    }
  }

  // One block alone: where the sum passes the goal within begin .. end - 1; a stretch of neighbours a thread.
  template <class Measure>
  __device__ void find_in_block(std::int32_t begin, std::int32_t end, const Measure& measure, mass goal, mass reached) {
    const std::int32_t stretch = (end - begin + threads - 1) / threads, start = begin + static_cast<std::int32_t>(threadIdx.x) * stretch;
    mass sum = 0;
    for (std::int32_t i = start; i < min(end, start + stretch); ++i) sum += measure(i);
    const mass upto = warp_scan(sum);
    if (threadIdx.x % 32 == 31) shared_.parts[threadIdx.x / 32] = upto;
    __syncthreads();
    reached += upto - sum;
    for (int i = 0; i < static_cast<int>(threadIdx.x) / 32; ++i) reached += shared_.parts[i];
    if (reached <= goal && goal < reached + sum) { // this thread's
      std::int32_t i = start;
      for (mass own = measure(i); goal >= reached + own; own = measure(++i)) reached += own;
      shared_.found = i, shared_.before = reached;
    }
    __syncthreads();
  }

  __device__ float kth_group_top(std::int32_t k) {
    float top = -INFINITY;
    for (std::int32_t i = threadIdx.x; i < count_; i += threads) top = fmaxf(top, logits_[i]);
    for (int distance = 8; distance > 0; distance /= 2) top = fmaxf(top, __shfl_xor_sync(everyone, top, distance));
    if (threadIdx.x % 16 < ranks) // a lane a block
      cluster_.map_shared_rank(shared_.group_tops, threadIdx.x % 16)[rank_ * (groups / ranks) + threadIdx.x / 16] = top;
    sync();
    for (int mine = threadIdx.x / 32; mine < groups / ranks; mine += warps) { // each block ranks its own groups, a warp one at a time
      const candidate own{shared_.group_tops[rank_ * (groups / ranks) + mine], rank_ * (groups / ranks) + mine};
      std::uint32_t better = 0;
      for (int i = threadIdx.x % 32; i < groups; i += 32) better += candidate{shared_.group_tops[i], i}.is_better(own) ? 1 : 0;
      if (__reduce_add_sync(everyone, better) == static_cast<std::uint32_t>(k) - 1 && threadIdx.x % 32 < ranks)
        *cluster_.map_shared_rank(&shared_.bound, threadIdx.x % 32) = own.logit;
    }
    sync();
    return shared_.bound;
  }

  // Brings the ids for which keep(i) to the first block and sorts them there; how many there are, when more than most_candidates no more.
  template <class Keep>
  __device__ std::int32_t collect(const Keep& keep) {
    if (threadIdx.x == 0) shared_.count = 0;
    __syncthreads();
    for (std::int32_t i = threadIdx.x; i < count_; i += threads) {
      if (!keep(i)) continue;
      const std::int32_t at = atomicAdd(&shared_.count, 1);
      if (at < most_candidates) shared_.own[at] = {logits_[i], first_ + i};
    }
    __syncthreads();
    const exchanged<std::int32_t> counts = exchange(shared_.count);
    std::int32_t n = 0;
    for (int i = 0; i < ranks; ++i) n += counts[i];
    if (n > most_candidates || rank_ != 0) return n;
    for (std::int32_t r = 0, start = 0; r < ranks; start += counts[r], ++r) {
      if (static_cast<std::int32_t>(threadIdx.x) < counts[r])
        shared_.all[start + threadIdx.x] = cluster_.map_shared_rank(shared_.own, r)[threadIdx.x];
    }
    __syncthreads();
    if (static_cast<std::int32_t>(threadIdx.x) < n) {
      const candidate mine = shared_.all[threadIdx.x];
      std::int32_t better = 0;
      for (std::int32_t i = 0; i < n; ++i) better += shared_.all[i].is_better(mine) ? 1 : 0;
      shared_.sorted[better] = mine;
    }
    __syncthreads();
    return n;
  }

  float* logits_;
  shared_state& shared_;
  std::int32_t vocab_, slice_;
  cooperative_groups::cluster_group cluster_;
  std::int32_t rank_, first_, count_;
  int turn_ = 0;
};

} // namespace troupe::gpu::sampling
