// config.json (and generation_config.json) of a Hugging Face folder -> model_config.
// Defaults of absent keys are those of transformers' configuration_{llama,mistral,qwen2,qwen3}.py.
#pragma once

#include <string>

#include "core/value.hpp"
#include "models/model.hpp"

namespace troupe {

// `file` is config.json's name for error lines. Throws load_error for an unknown architecture, activation, rope type or
// quantisation, and for numbers that are missing, out of bounds or at odds with each other.
model_config parse_hf_config(const value& config, const value& generation_config, const std::string& file);

// "rope_parameters" (newer) or "rope_scaling", with "rope_type" or "type" (older). Needs head_dim to be set.
// `stated_positions` is max_position_embeddings.
rope_config parse_hf_rope(const value& config, std::int32_t head_dim, std::int64_t stated_positions, const std::string& file);

} // namespace troupe
