// Chooses tokens from logits. The rules are those of core/sampling.hpp; what is spelt out here is what another device must
// mirror to draw the same tokens:
// - the kept set is decided by (logit, id) pairs, larger logits first and lower ids first among equals;
// - the draw walks the kept ids upwards and takes the first whose cumulative weight exceeds uniform_at(seed, position) times the total
//   weight, weights e^((logit - largest) / temperature).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/ids.hpp"
#include "core/sampling.hpp"
#include "core/step.hpp"
#include "kernels/log_softmax.hpp"

namespace troupe {

// A distinct token of a sequence, for the penalties.
struct seen_token {
  token_id token = 0;
  std::int32_t output_count = 0; // occurrences among the outputs; 0: in the prompt alone
};

struct sampling_row {
  const float* logits = nullptr; // [vocab], not changed
  const sampling_params* params = nullptr;
  std::span<const seen_token> seen; // each token once
  std::int64_t position = 0;        // of the token to draw, in its sequence
  std::int64_t outputs = 0;         // drawn before it
};

// True when `params` needs to know the tokens so far.
bool has_penalties(const sampling_params& params);

namespace cpu {

// Draws from rows of `vocab` logits. Holds scratch for one row: one object per thread.
class sampler {
 public:
  explicit sampler(std::int64_t vocab);

  // None when the logits (or what biases made of them) hold a NaN, +inf, or nothing finite. Ids in `params` and `seen` that are
  // not below vocab are ignored.
  std::optional<token_id> sample(const sampling_row& row);

 private:
  void adjust(const sampling_row& row);
  void keep_top_p(float top_p);
  std::size_t shortest_run(double goal);
  token_id draw(const sampling_row& row, float top);

  std::vector<float> logits_;  // of the row, after penalties and biases
  std::vector<token_id> kept_; // ids that may be drawn, ascending
  std::vector<float> weights_; // of the ids in kept_; the best id's is 1
  std::vector<token_id> order_;
  std::vector<float> by_id_; // weights_, found by id
};

// The log-probability of `token` and the `top` largest ones (fewer when the vocabulary is smaller), of raw logits.
token_scores score_token(const float* logits, std::int64_t vocab, const softmax_scale& scale, token_id token, std::int32_t top);

} // namespace cpu
} // namespace troupe
