// Draws tokens from logits on the GPU by the rules of kernels/sampling.hpp: the same kept set, the same walk over ids, the same random
// number. Weights are summed as integers of 2^-40 of the best id's, so that no order of additions shows; a draw differs from the CPU's only
// where u * total lies within that rounding of a border.
// Penalties, logit_bias and suppression are not applied here.
#pragma once

#include <cstdint>

#include "core/ids.hpp"
#include "device/cuda/handles.hpp"

namespace troupe::gpu {

struct sampling_row {
  float temperature = 1; // below 1e-5: greedy
  float top_p = 1;
  float min_p = 0;
  std::int32_t top_k = 0;
  std::uint64_t seed = 0;
  std::int64_t position = 0; // of the token to draw, in its sequence
};

struct sampled_token {
  token_id token = 0;
  std::int32_t usable = 0; // 0: the logits hold a NaN or +inf, or none is finite, and the rest says nothing
  float logprob = 0;       // of the token, by the raw logits
};

struct sampling_args {
  const float* logits = nullptr; // [rows][vocab]
  std::int64_t stride = 0;
  std::int32_t rows = 0;
  std::int32_t vocab = 0;
  const sampling_row* params = nullptr; // [rows], device memory
  sampled_token* sampled = nullptr;     // [rows], device memory
  bool overlaps = false;                // as in linear_args
};

void sample(cuda::stream_handle on, const sampling_args& args);

} // namespace troupe::gpu
