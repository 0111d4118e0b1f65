// Reader of one safetensors file. Format: huggingface/safetensors README, "Format".
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "models/tensor_file.hpp"

namespace troupe {

// Tensors of the file in `bytes`, in data order; `bytes` must outlive them. `name` is for error lines.
// Throws load_error when header, types, shapes or offsets do not fit each other and the file, to the byte: the tensors must
// cover the data section without hole or overlap, so a cut-off file is found here.
std::vector<file_tensor> parse_safetensors(std::span<const std::byte> bytes, const std::string& name);

} // namespace troupe
