// Draws tokens from logits on the GPU by the rules of kernels/sampling.hpp: the same penalties, biases and kept set, the same walk over
// ids, the same random number. Weights are summed as integers of 2^-40 of the best id's, so that no order of additions shows; a draw
// differs from the CPU's only where u * total (or top_p * total) lies within that rounding, or that of e^x, of a border.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/ids.hpp"
#include "core/sampling.hpp"
#include "core/step.hpp"
#include "device/cuda/handles.hpp"
#include "kernels/linear_gpu.hpp"

namespace troupe::gpu {

inline constexpr std::int32_t most_best_tokens = 20;     // reported beside one token
inline constexpr std::int32_t most_biased_tokens = 1024; // in the list of one slot, and likewise of suppressed ones

// What a slot's sequence asks for (core/sampling.hpp has the meanings); device memory, one a slot, written when the slot opens.
struct sampling_slot {
  float temperature = 1; // below 1e-5: greedy
  float top_p = 1;
  float min_p = 0;
  std::int32_t top_k = 0;
  float repetition_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  std::int32_t prompt_tokens = 0; // outputs before position p: p - prompt_tokens
  std::int32_t min_tokens = 0;
  std::int32_t biases = 0;     // used entries of the slot's list
  std::int32_t suppressed = 0; // likewise
  std::int32_t reported = 0;   // 0: no logprobs; 1 + n: the drawn token's and the n best ones'
  std::uint64_t seed = 0;
};
// The fixed part of `params`; the lists go to biases and suppressed of sampling_args.
sampling_slot slot_of(const sampling_params& params, std::int32_t prompt_tokens);

struct sampled_token {
  token_id token = 0;
  std::int32_t usable = 0; // 0: the logits hold a NaN or +inf, or none is finite, and the rest says nothing
  float logprob = 0;       // of the token, by the raw logits; only where the slot or row reports
  std::int32_t best = 0;   // entries of the row's best tokens
};

// What came of a work item (step_rows_gpu.hpp).
struct item_result {
  std::int32_t drawn = 0; // the first so many draws of its heads count
  std::int32_t faulted = 0;
};

// One row of logits; device memory.
struct sampling_row {
  enum class work : std::int32_t {
    draw,           // draw a token and, with penalties, count it in the slot's history
    draw_uncounted, // the same without counting: rows of a verify item, of which count_tokens() takes the accepted ones
    score,          // report `target` and `alternatives` best tokens: logprobs of a prompt
  };
  work kind = work::draw;
  std::int32_t slot = 0;
  std::int64_t position = 0; // of the token that the logits are about, in its sequence
  // Rows of the same item before this one, whose draws are assumed to be args.inputs[this row - drafts + 1 .. this row]: penalties count
  // those tokens as outputs.
  std::int32_t drafts = 0;
  token_id target = 0;
  std::int32_t alternatives = 0;
  // Of a draw that is all its work item has: a copy of it, and what came of the item. Null: keep_draws() sees to it.
  sampled_token* kept = nullptr;
  item_result* result = nullptr;
};

struct sampling_args {
  const float* logits = nullptr; // [rows][stride], of which `vocab` count: what a model pads its vocabulary with is never looked at
  std::int64_t stride = 0;
  std::int32_t rows = 0;
  std::int32_t vocab = 0; // at most 370000
  // What linear_to_logits() left of each row, of which a greedy draw from the raw logits takes the best; 0: nothing.
  const logit_top* tops = nullptr; // [rows][most_logit_tops]
  std::int32_t tops_count = 0;
  const sampling_row* row = nullptr;    // [rows]
  const sampling_slot* slots = nullptr; // [slots]
  std::uint32_t* history = nullptr;     // [slots][vocab]: 0: not seen; 1 + how often a token was an output. Null: no slot has penalties
  const token_bias* biases = nullptr;   // [slots][bias_stride], each token once, ids below 0 or from `vocab` on are passed over
  std::int64_t bias_stride = 0;
  const token_id* suppressed = nullptr; // [slots][suppressed_stride], likewise
  std::int64_t suppressed_stride = 0;
  const token_id* inputs = nullptr; // [rows], the token that each row of logits came from; null: no row has drafts
  sampled_token* sampled = nullptr; // [rows]
  scored_token* best = nullptr;     // [rows][most_best_tokens], best first; null: nothing reports
  token_id* last_tokens = nullptr;  // [slots] or null: drawn tokens (not of draw_uncounted) go to their slots' places too
  std::int32_t* faulted = nullptr;  // [slots]: of rows with a result, set where the logits are not usable; null: no row has one
  // As in linear_args: `row`, `slots` and `faulted` must not be what the previous kernels of the chain write, but for those that a product
  // with holds_next lies behind.
  bool overlaps = false;
};

void sample(cuda::stream_handle on, const sampling_args& args);

// Counts tokens in the slots' histories: prompt tokens of a chunk, accepted drafts. Only slots with penalties need it.
struct counted_token {
  std::int32_t slot = 0;
  token_id token = 0;
  std::int32_t is_output = 0; // 0: of the prompt
};
void count_tokens(cuda::stream_handle on, const counted_token* tokens, std::int32_t count, std::uint32_t* history, std::int32_t vocab);
// Forgets a slot's history: before a sequence with penalties begins.
void clear_history(cuda::stream_handle on, std::uint32_t* history, std::int32_t vocab, std::int32_t slot);

} // namespace troupe::gpu
