#include "kernels/sampling_gpu.hpp"

#include "kernels/half_types.cuh"
#include "kernels/launch.cuh"
#include "kernels/philox.hpp"

namespace troupe::gpu {
namespace {

constexpr int warps = 32;
constexpr int threads = warps * 32;
constexpr int bins = 2048; // a digit of 11 bits
constexpr float greedy_below = 1e-5F;
constexpr unsigned everyone = 0xffffffffU;

using mass = unsigned long long; // of weights: 2^40 is the best id's

struct shared_state {
  mass histogram[bins];
  mass sums[warps];
  mass before;
  std::int32_t found;
  float tops[warps];
  std::int32_t top_ids[warps];
  double totals[warps];
};

// Orders as the logits do; both zeros are the same.
__device__ __forceinline__ std::uint32_t key_of(float logit) {
  const std::uint32_t bits = __float_as_uint(logit + 0.0F);
  return bits ^ ((bits & 0x80000000U) != 0 ? 0xffffffffU : 0x80000000U);
}

__device__ __forceinline__ mass warp_total(mass x) {
  for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(everyone, x, distance);
  return x;
}

struct crossing {
  std::int32_t index = 0; // the first with measure(0) + ... + measure(index) > goal
  mass before = 0;        // measure(0) + ... + measure(index - 1)
};

// Walks measure(0 .. count-1) in order; goal_of(total) must be below the total. Called by the whole block.
template <class Measure, class Goal>
__device__ crossing walk(std::int32_t count, shared_state& shared, const Measure& measure, const Goal& goal_of) {
  const std::int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const std::int32_t chunk = (count + warps - 1) / warps, begin = warp * chunk, end = min(count, begin + chunk);
  mass sum = 0;
  for (std::int32_t i = begin + lane; i < end; i += 32) sum += measure(i);
  sum = warp_total(sum);
  if (lane == 0) shared.sums[warp] = sum;
  __syncthreads();
  mass total = 0, reached = 0;
  for (int i = 0; i < warps; ++i) total += shared.sums[i];
  for (int i = 0; i < warp; ++i) reached += shared.sums[i];
  const mass goal = goal_of(total);
  if (reached <= goal && goal < reached + sum) { // this warp's, whole: one warp alone
    for (std::int32_t start = begin; start < end; start += 32) {
      const mass own = start + lane < end ? measure(start + lane) : 0;
      mass upto = own;
      for (int distance = 1; distance < 32; distance *= 2) {
        const mass lower = __shfl_up_sync(everyone, upto, distance);
        if (lane >= distance) upto += lower;
      }
      const unsigned over = __ballot_sync(everyone, reached + upto > goal);
      if (over != 0) {
        if (lane == __ffs(static_cast<int>(over)) - 1) shared.found = start + lane, shared.before = reached + upto - own;
        break;
      }
      reached += __shfl_sync(everyone, upto, 31);
    }
  }
  __syncthreads();
  const crossing at{shared.found, shared.before};
  __syncthreads(); // found and sums are free for the next walk
  return at;
}

// The ids that may be drawn: those whose key is above `key`, and of those with it the ones up to `last_id`.
struct cut {
  std::uint32_t key = 0;
  std::int32_t last_id = 0;

  __device__ bool keeps(std::uint32_t k, std::int32_t id) const { return k > key || (k == key && id <= last_id); }
};

// Best keys first, the key at which the sum of measure(id, key) first exceeds `goal`, and the sum before it: 11, 11 and 10 bits at a time,
// without a sort. Ids for which measure is 0 do not count.
template <class Measure>
__device__ std::uint32_t select_key(const float* logits, std::int32_t vocab, shared_state& shared, const Measure& measure, mass goal,
                                    mass& before) {
  std::uint32_t key = 0;
  before = 0;
  for (int shift = 21; shift >= 0; shift -= shift == 21 ? 11 : 10) {
    const int width = shift == 0 ? 10 : 11, above = shift + width;
    for (int i = threadIdx.x; i < bins; i += threads) shared.histogram[i] = 0;
    __syncthreads();
    for (std::int32_t id = threadIdx.x; id < vocab; id += threads) {
      const std::uint32_t k = key_of(logits[id]);
      if (above < 32 && (k >> above) != (key >> above)) continue;
      const mass m = measure(id, k);
      if (m != 0) atomicAdd(&shared.histogram[k >> shift & ((1U << width) - 1)], m);
    }
    __syncthreads();
    const std::int32_t last = (1 << width) - 1;
    const mass left = goal - before;
    const crossing at = walk(
        last + 1, shared, [&](std::int32_t i) { return shared.histogram[last - i]; }, [left](mass) { return left; });
    key |= static_cast<std::uint32_t>(last - at.index) << shift;
    before += at.before;
  }
  return key;
}

// The id of the `count`-th of those with this key.
__device__ std::int32_t nth_equal(const float* logits, std::int32_t vocab, shared_state& shared, std::uint32_t key, mass count) {
  const auto equal = [&](std::int32_t id) -> mass { return key_of(logits[id]) == key ? 1 : 0; };
  return walk(vocab, shared, equal, [count](mass) { return count - 1; }).index;
}

__device__ double block_total(double x, shared_state& shared) {
  for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(everyone, x, distance);
  if (threadIdx.x % 32 == 0) shared.totals[threadIdx.x / 32] = x;
  __syncthreads();
  x = 0;
  for (int i = 0; i < warps; ++i) x += shared.totals[i];
  __syncthreads();
  return x;
}

// The largest logit and the lowest id that has it; false when the row cannot be drawn from.
__device__ bool find_top(const float* logits, std::int32_t vocab, shared_state& shared, float& top, std::int32_t& id) {
  top = -INFINITY, id = vocab;
  int bad = 0;
  for (std::int32_t i = threadIdx.x; i < vocab; i += threads) {
    const float x = logits[i];
    bad |= !(x < INFINITY);
    if (x > top) top = x, id = i;
  }
  for (int distance = 16; distance > 0; distance /= 2) {
    const float other = __shfl_xor_sync(everyone, top, distance);
    const std::int32_t other_id = __shfl_xor_sync(everyone, id, distance);
    if (other > top || (other == top && other_id < id)) top = other, id = other_id;
  }
  if (threadIdx.x % 32 == 0) shared.tops[threadIdx.x / 32] = top, shared.top_ids[threadIdx.x / 32] = id;
  bad = __syncthreads_or(bad);
  for (int i = 0; i < warps; ++i) {
    const float other = shared.tops[i];
    if (other > top || (other == top && shared.top_ids[i] < id)) top = other, id = shared.top_ids[i];
  }
  return bad == 0 && top > -INFINITY;
}

struct weigher {
  float top, inverse_temperature;
  __device__ float operator()(float logit) const { return expf((logit - top) * inverse_temperature); }
  __device__ static mass fixed(float weight) { return __float2ull_rn(weight * 0x1p40F); }
};

// Narrows `kept` to the shortest run of best ids whose weight reaches top_p of the whole.
__device__ void keep_top_p(const float* logits, std::int32_t vocab, shared_state& shared, const weigher& weight, float top_p, cut& kept) {
  const cut before_cut = kept;
  const auto measure = [&](std::int32_t id, std::uint32_t k) -> mass {
    return before_cut.keeps(k, id) ? weigher::fixed(weight(logits[id])) : 0;
  };
  mass goal = 0;
  walk(
      vocab, shared, [&](std::int32_t id) { return measure(id, key_of(logits[id])); },
      [&](mass total) { // reached is "at least": the first that exceeds one less
        const mass wanted = static_cast<mass>(ceil(static_cast<double>(top_p) * static_cast<double>(total)));
        goal = min(max(wanted, mass{1}), total) - 1;
        return goal;
      });
  mass before = 0;
  kept.key = select_key(logits, vocab, shared, measure, goal, before);
  // Those with the same key weigh the same: as many of the lowest ids as it takes.
  const auto equal = [&](std::int32_t id) -> mass { return key_of(logits[id]) == kept.key ? measure(id, kept.key) : 0; };
  kept.last_id = walk(vocab, shared, equal, [&](mass) { return goal - before; }).index;
}

__device__ std::int32_t draw(const float* logits, std::int32_t vocab, shared_state& shared, const sampling_row& params, float top) {
  const weigher weight{top, 1.0F / params.temperature};
  cut kept{0, vocab};
  if (params.top_k > 0 && params.top_k < vocab) {
    mass before = 0;
    const mass k = static_cast<mass>(params.top_k);
    kept.key = select_key(
        logits, vocab, shared, [](std::int32_t, std::uint32_t) -> mass { return 1; }, k - 1, before);
    kept.last_id = nth_equal(logits, vocab, shared, kept.key, k - before);
  }
  if (params.top_p < 1.0F) keep_top_p(logits, vocab, shared, weight, params.top_p, kept);
  const float lightest = fminf(params.min_p, 1.0F);
  const auto counts = [&](std::int32_t id) -> mass {
    const float w = weight(logits[id]);
    return w >= lightest && kept.keeps(key_of(logits[id]), id) ? weigher::fixed(w) : 0;
  };
  const double u = uniform_at(params.seed, static_cast<std::uint64_t>(params.position));
  return walk(vocab, shared, counts, [u](mass total) { return min(static_cast<mass>(u * static_cast<double>(total)), total - 1); }).index;
}

// A block a row.
__global__ void __launch_bounds__(threads)
    sampling_kernel(const float* logits, std::int64_t stride, std::int32_t vocab, const sampling_row* params, sampled_token* sampled) {
  __shared__ shared_state shared;
  let_next_start();
  wait_for_previous();
  logits += blockIdx.x * stride;
  const sampling_row own = params[blockIdx.x];
  float top = 0;
  std::int32_t token = 0;
  if (!find_top(logits, vocab, shared, top, token)) {
    if (threadIdx.x == 0) sampled[blockIdx.x] = {};
    return;
  }
  double sum = 0;
  for (std::int32_t i = threadIdx.x; i < vocab; i += threads) sum += static_cast<double>(expf(logits[i] - top));
  sum = block_total(sum, shared);
  if (own.temperature >= greedy_below) token = draw(logits, vocab, shared, own, top);
  if (threadIdx.x == 0) {
    const double logprob = static_cast<double>(logits[token] - top) - log(sum);
    sampled[blockIdx.x] = {token, 1, static_cast<float>(logprob)};
  }
}

} // namespace

void sample(cuda::stream_handle on, const sampling_args& args) {
  require(args.rows >= 1 && args.vocab >= 1, "sample", "rows and vocab are at least 1");
  launch(on, {static_cast<unsigned>(args.rows), threads, 0, args.overlaps}, sampling_kernel, args.logits, args.stride, args.vocab,
         args.params, args.sampled);
}

} // namespace troupe::gpu
