// The hidden states of a GPU's layers, for compare_layers.hpp.
#pragma once

#include <span>

#include "models/compare_layers.hpp"
#include "models/gpu_executor.hpp"

namespace troupe {

enum class token_feed : std::uint8_t {
  at_once,   // all tokens in one step, as a prompt
  one_by_one // each in a step of its own, as decoding does: the fused chain where `options` has it
};

// `tokens` at positions 0, 1, ..; options as for make_gpu_executor(), whose errors these are too.
layer_states gpu_layer_states(const model_weights& weights, const gpu_executor_options& options, std::span<const token_id> tokens,
                              token_feed feed);

// The type that the options make of these weights: bf16 or f16.
dtype gpu_type(const model_weights& weights, const gpu_executor_options& options);

} // namespace troupe
