#include "kernels/sampling_gpu.hpp"

#include <cfloat>

#include "kernels/launch.cuh"
#include "kernels/philox.hpp"
#include "kernels/sampling.hpp"
#include "kernels/sampling_row.cuh"

namespace troupe::gpu {
namespace {

using namespace sampling;

constexpr float greedy_below = 1e-5F;
constexpr std::int32_t few = 128; // best ids among which top_p is looked for first

__device__ bool penalises(const sampling_slot& slot) {
  return slot.repetition_penalty != 1.0F || slot.presence_penalty != 0.0F || slot.frequency_penalty != 0.0F;
}

// A finite logit stays finite whatever is done to it; the others stay what they are.
__device__ float set_logit(float logit, float changed) { return isfinite(logit) ? fminf(fmaxf(changed, -FLT_MAX), FLT_MAX) : logit; }

// `seen`: as in the history. Rounded after each operation, as on the CPU.
__device__ float penalised(const sampling_slot& slot, float logit, std::uint32_t seen) {
  if (seen == 0) return logit;
  logit = set_logit(logit, logit > 0 ? __fdiv_rn(logit, slot.repetition_penalty) : __fmul_rn(logit, slot.repetition_penalty));
  if (seen == 1) return logit;
  const float by_count = __fmul_rn(slot.frequency_penalty, static_cast<float>(seen - 1));
  return set_logit(logit, __fsub_rn(__fsub_rn(logit, slot.presence_penalty), by_count));
}

// Penalties, biases and suppression, in this order. `raw` is the row in device memory.
__device__ void adjust(row& r, const sampling_args& args, const sampling_row& own, const sampling_slot& slot, const float* raw) {
  const auto here = [&](token_id token) { return token >= r.first() && token - r.first() < r.count(); };
  if (penalises(slot)) {
    const std::uint32_t* const history = args.history + static_cast<std::int64_t>(own.slot) * args.vocab;
    constexpr int batch = 8; // loads under way
    for (std::int32_t start = threadIdx.x; start < r.count(); start += batch * threads) {
      std::uint32_t seen[batch];
#pragma unroll
      for (int k = 0; k < batch; ++k) seen[k] = start + k * threads < r.count() ? history[r.first() + start + k * threads] : 0;
#pragma unroll
      for (int k = 0; k < batch; ++k) {
        if (seen[k] != 0) r[start + k * threads] = penalised(slot, r[start + k * threads], seen[k]);
      }
    }
    __syncthreads();
    const token_id* const drafts = args.inputs + blockIdx.x / ranks - own.drafts + 1;
    for (std::int32_t d = threadIdx.x; d < own.drafts; d += threads) { // anew from the raw logit, with the draft's occurrences
      const token_id token = drafts[d];
      if (!here(token)) continue;
      std::uint32_t seen = max(history[token], 1U);
      for (std::int32_t other = 0; other < own.drafts; ++other) seen += drafts[other] == token ? 1 : 0;
      r[token - r.first()] = penalised(slot, raw[token], seen);
    }
    __syncthreads();
  }
  const token_bias* const biases = args.biases + own.slot * args.bias_stride;
  for (std::int32_t i = threadIdx.x; i < slot.biases; i += threads) {
    if (!here(biases[i].token)) continue;
    float& logit = r[biases[i].token - r.first()];
    logit = set_logit(logit, __fadd_rn(logit, biases[i].bias));
  }
  __syncthreads();
  if (own.position - slot.prompt_tokens < slot.min_tokens) {
    const token_id* const suppressed = args.suppressed + own.slot * args.suppressed_stride;
    for (std::int32_t i = threadIdx.x; i < slot.suppressed; i += threads) {
      if (here(suppressed[i])) r[suppressed[i] - r.first()] = -INFINITY;
    }
  }
  __syncthreads();
}

struct weigher {
  float top, inverse_temperature;
  __device__ float operator()(float logit) const { return expf((logit - top) * inverse_temperature); }
  // weight * 2^40, cut off, for 0 <= weight <= 1: the mantissa where the exponent says. The conversion instruction is far slower.
  __device__ static mass fixed(float weight) {
    const std::uint32_t bits = __float_as_uint(weight), mantissa = (bits & 0x7fffffU) | 0x800000U, exponent = bits >> 23;
    constexpr std::uint32_t unit = 127 + 23 - 40; // the exponent of 2^-17: there the mantissa's last bit weighs 2^-40
    return exponent >= unit ? mass{mantissa} << (exponent - unit) : mantissa >> min(unit - exponent, 31U);
  }
};

// The mass at which top_p of `total` is reached.
__device__ mass top_p_goal(float top_p, mass total) {
  const mass wanted = static_cast<mass>(ceil(static_cast<double>(top_p) * static_cast<double>(total)));
  return min(max(wanted, mass{1}), total);
}

// Where the walk for this row's random number stops: the first id whose cumulative mass exceeds it.
__device__ mass draw_goal(const sampling_slot& slot, const sampling_row& own, mass total) {
  const double u = uniform_at(slot.seed, static_cast<std::uint64_t>(own.position));
  return min(static_cast<mass>(u * static_cast<double>(total)), total - 1);
}

// Sum over the block; all threads get it, and `upto` what the threads before and this one have.
__device__ mass block_scan(mass x, mass& upto, mass (&sums)[warps]) {
  upto = warp_scan(x);
  __syncthreads();
  if (threadIdx.x % 32 == 31) sums[threadIdx.x / 32] = upto;
  __syncthreads();
  mass total = 0;
  for (int i = 0; i < warps; ++i) {
    if (i < static_cast<int>(threadIdx.x) / 32) upto += sums[i];
    total += sums[i];
  }
  return total;
}

// The first block alone: draws from the `n` sorted candidates, of which the first `limit` may be drawn; `total`: the mass that top_p refers
// to, 0: theirs. Returns -1 when top_p needs more than the candidates.
__device__ token_id draw_from_sorted(shared_state& shared, std::int32_t limit, const weigher& weight, const sampling_slot& slot,
                                     const sampling_row& own, mass total) {
  const std::int32_t i = threadIdx.x;
  const candidate mine = i < limit ? shared.sorted[i] : candidate{-INFINITY, 0};
  const float w = i < limit ? weight(mine.logit) : 0.0F;
  mass upto = 0;
  const mass all = block_scan(weigher::fixed(w), upto, shared.sums);
  if (slot.top_p < 1.0F) {
    const mass goal = top_p_goal(slot.top_p, total == 0 ? all : total);
    if (all < goal) return -1;
    limit = min(limit, 1 + __syncthreads_count(upto < goal)); // masses of 0 behind the last candidate reach it too
  }
  const mass counted = i < limit && w >= fminf(slot.min_p, 1.0F) ? weigher::fixed(w) : 0;
  shared.masses[i] = counted;
  const mass goal = draw_goal(slot, own, block_scan(counted, upto, shared.sums));
  mass before = 0;
  for (std::int32_t other = 0; other < limit; ++other) before += shared.sorted[other].id < mine.id ? shared.masses[other] : 0;
  if (counted != 0 && before <= goal && goal < before + counted) shared.found = mine.id;
  __syncthreads();
  return shared.found;
}

// Any kept set, by histograms over the whole row.
__device__ token_id draw_from_row(row& r, const weigher& weight, const sampling_slot& slot, const sampling_row& own) {
  cut kept{0, r.vocab()};
  if (slot.top_k > 0 && slot.top_k < r.vocab()) kept = r.best(slot.top_k);
  const auto kept_mass = [&](std::int32_t i, std::uint32_t k, const cut& within) -> mass {
    return within.keeps(k, r.first() + i) ? weigher::fixed(weight(r[i])) : 0;
  };
  if (slot.top_p < 1.0F) {
    const cut all = kept;
    const mass total = r.total<mass>(r.shared().sums, [&](std::int32_t i) { return kept_mass(i, key_of(r[i]), all); });
    const mass goal = top_p_goal(slot.top_p, total) - 1;
    // When an id is needed, what weighs on it and the ids behind it, none heavier, is more than total - goal - 1.
    const mass lightest = (total - goal - 1) / static_cast<mass>(r.vocab());
    mass before = 0;
    kept.key = r.select_key(
        [&](std::int32_t i, std::uint32_t k) {
          const mass m = kept_mass(i, k, all);
          return m >= lightest ? m : 0;
        },
        goal, before);
    // Those with the same key weigh the same: as many of the lowest ids as it takes.
    const auto equal = [&](std::int32_t i) -> mass { return key_of(r[i]) == kept.key ? kept_mass(i, kept.key, all) : 0; };
    const mass left = goal - before;
    kept.last_id = r.walk(r.count(), r.slice(), equal, [left](mass) { return left; }).index;
  }
  const float lightest = fminf(slot.min_p, 1.0F);
  const bool whole = kept.key == 0; // nothing is cut
  const auto counts = [&](std::int32_t i) -> mass {
    const float w = weight(r[i]);
    return w >= lightest && (whole || kept.keeps(key_of(r[i]), r.first() + i)) ? weigher::fixed(w) : 0;
  };
  return r.walk(r.count(), r.slice(), counts, [&](mass total) { return draw_goal(slot, own, total); }).index;
}

// The drawn token, in the first block.
__device__ token_id draw(row& r, const sampling_slot& slot, const sampling_row& own, const candidate& top) {
  if (slot.temperature < greedy_below) return top.id;
  const weigher weight{top.logit, 1.0F / slot.temperature};
  if (slot.top_k > 0 && slot.top_k < r.vocab()) {
    if (slot.top_k > most_candidates) return draw_from_row(r, weight, slot, own);
    r.collect_best(slot.top_k);
    return r.rank() == 0 ? draw_from_sorted(r.shared(), slot.top_k, weight, slot, own, 0) : 0;
  }
  if (slot.top_p < 1.0F) {
    const mass total = r.total<mass>(r.shared().sums, [&](std::int32_t i) { return weigher::fixed(weight(r[i])); });
    const std::int32_t n = r.collect_best(min(few, r.vocab()));
    const token_id token = r.from_first(r.rank() == 0 ? draw_from_sorted(r.shared(), n, weight, slot, own, total) : 0);
    if (token >= 0) return token;
  }
  return draw_from_row(r, weight, slot, own);
}

// Logprobs by the raw logits: of the best ids, into `best`. Returns what a logit's logprob is less: the largest logit and ln of the sum.
struct raw_scale {
  float top;
  double log_sum;
  __device__ float logprob(float logit) const { return static_cast<float>(static_cast<double>(logit - top) - log_sum); }
};
__device__ raw_scale report(row& r, float top, std::int32_t wanted, scored_token* best) {
  const double sum = r.total<double>(r.shared().totals, [&](std::int32_t i) { return expf(r[i] - top); });
  const raw_scale scale{top, log(fmax(sum, 1.0))};
  if (wanted > 0) {
    r.collect_best(wanted);
    if (r.rank() == 0 && static_cast<std::int32_t>(threadIdx.x) < wanted) {
      const candidate& c = r.shared().sorted[threadIdx.x];
      best[threadIdx.x] = {c.id, scale.logprob(c.logit)};
    }
  }
  return scale;
}

// A cluster a row.
__global__ void __cluster_dims__(ranks, 1, 1) __launch_bounds__(threads, 2)
    sampling_kernel(const __grid_constant__ sampling_args args, std::int32_t slice) {
  extern __shared__ __align__(16) std::byte memory[];
  auto& shared = *reinterpret_cast<shared_state*>(memory);
  const std::int32_t index = blockIdx.x / ranks;
  const sampling_row own = args.row[index];
  const sampling_slot slot = args.slots[own.slot];
  const bool faulted = own.result != nullptr && args.faulted[own.slot] != 0;
  let_next_start();
  wait_for_previous();
  const float* const raw = args.logits + index * args.stride;
  row r(reinterpret_cast<float*>(memory + sizeof(shared_state)), shared, args.vocab, slice);
  candidate top;
  const bool scores = own.kind == sampling_row::work::score;
  const std::int32_t reported = scores ? 1 + own.alternatives : slot.reported;
  const bool adjusts = penalises(slot) || slot.biases > 0 || own.position - slot.prompt_tokens < slot.min_tokens;
  const bool best_alone = slot.temperature < greedy_below && reported == 0 && !adjusts;
  const bool from_tops = best_alone && args.tops_count > 0;
  if (from_tops && r.rank() != 0) return r.leave();
  bool usable = from_tops ? r.load_tops(args.tops + std::int64_t{index} * most_logit_tops, args.tops_count, top) : r.load(raw, top);
  const std::int32_t wanted = max(0, min(min(reported - 1, most_best_tokens), args.vocab));
  token_id token = own.target;
  raw_scale scale{};
  if (usable && reported > 0) scale = report(r, top.logit, wanted, args.best + std::int64_t{index} * most_best_tokens);
  if (usable && !scores) {
    if (adjusts) {
      adjust(r, args, own, slot, raw);
      usable = r.find_top(top);
    }
    if (usable) token = draw(r, slot, own, top);
  }
  if (r.rank() == 0 && threadIdx.x == 0) {
    sampled_token out{};
    if (usable) out = {token, 1, reported > 0 ? scale.logprob(raw[token]) : 0.0F, reported > 0 ? wanted : 0};
    args.sampled[index] = out;
    if (own.result != nullptr) {
      *own.kept = out;
      *own.result = usable && !faulted ? item_result{1, 0} : item_result{0, 1};
      if (!usable) args.faulted[own.slot] = 1;
    }
    if (usable && own.kind == sampling_row::work::draw) {
      if (args.last_tokens != nullptr) args.last_tokens[own.slot] = token;
      if (penalises(slot)) {
        std::uint32_t& seen = args.history[static_cast<std::int64_t>(own.slot) * args.vocab + token];
        seen = max(seen, 1U) + (own.position >= slot.prompt_tokens ? 1 : 0);
      }
    }
  }
  // The first block reads the others' shared memory until here, unless it took the best id and no more.
  if (reported > 0 || slot.temperature >= greedy_below) r.sync();
}

__global__ void count_kernel(const counted_token* tokens, std::int32_t count, std::uint32_t* history, std::int32_t vocab) {
  const std::int32_t i = static_cast<std::int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= count) return;
  const counted_token t = tokens[i];
  std::uint32_t* const seen = history + static_cast<std::int64_t>(t.slot) * vocab + t.token;
  atomicCAS(seen, 0U, 1U);
  if (t.is_output != 0) atomicAdd(seen, 1U);
}

} // namespace

sampling_slot slot_of(const sampling_params& params, std::int32_t prompt_tokens) {
  sampling_slot slot;
  slot.temperature = params.temperature;
  slot.top_p = params.top_p;
  slot.min_p = params.min_p;
  slot.top_k = params.top_k;
  slot.repetition_penalty = params.repetition_penalty;
  slot.presence_penalty = params.presence_penalty;
  slot.frequency_penalty = params.frequency_penalty;
  slot.prompt_tokens = prompt_tokens;
  slot.min_tokens = params.min_tokens;
  slot.biases = static_cast<std::int32_t>(params.logit_bias.size());
  slot.suppressed = static_cast<std::int32_t>(params.suppressed.size());
  slot.reported = params.top_logprobs ? 1 + *params.top_logprobs : 0;
  slot.seed = params.seed;
  return slot;
}

void sample(cuda::stream_handle on, const sampling_args& args) {
  constexpr std::int32_t most_vocab = 370000;
  static_assert(sizeof(shared_state) % 16 == 0 && sizeof(shared_state) + most_vocab / ranks * 4 < 227 * 1024);
  require(args.rows >= 1 && args.vocab >= 1 && args.vocab <= most_vocab, "sample", "at least 1 row, and 1 to 370000 ids");
  const std::int32_t slice = (args.vocab + ranks * 4 - 1) / (ranks * 4) * 4; // 16 bytes at once
  const std::size_t shared = sizeof(shared_state) + static_cast<std::size_t>(slice) * 4;
  launch(on, launch_shape(static_cast<unsigned>(args.rows * ranks), threads, shared, args.overlaps).split_for_rows(args.rows),
         sampling_kernel, args, slice);
}

void count_tokens(cuda::stream_handle on, const counted_token* tokens, std::int32_t count, std::uint32_t* history, std::int32_t vocab) {
  require(count >= 1, "count_tokens", "at least 1 token");
  launch(on, launch_shape(static_cast<unsigned>((count + 255) / 256), 256).split_for_rows(count), count_kernel, tokens, count, history,
         vocab);
}

void clear_history(cuda::stream_handle on, std::uint32_t* history, std::int32_t vocab, std::int32_t slot) {
  cuda::check(cudaMemsetAsync(history + static_cast<std::int64_t>(slot) * vocab, 0, static_cast<std::size_t>(vocab) * 4, on),
              "cudaMemsetAsync");
}

} // namespace troupe::gpu
