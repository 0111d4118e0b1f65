// GGUF metadata -> model_config, for the architectures "llama" (Llama, Mistral, SmolLM2), "qwen2" and "qwen3".
// Keys: ggml-org/ggml docs/gguf.md; what they mean where that page is silent: llama.cpp's src/llama-model.cpp.
#pragma once

#include <string>
#include <vector>

#include "core/value.hpp"
#include "models/model.hpp"
#include "models/tensor_file.hpp"

namespace troupe {

// Vocabulary size, tied head, biases and frequency divisors come from the tensors. `file` is for error lines; throws load_error.
model_config parse_gguf_config(const value& metadata, const std::vector<file_tensor>& tensors, const std::string& file);

} // namespace troupe
