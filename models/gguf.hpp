// Reader of one GGUF file, versions 2 and 3. Format: ggml-org/ggml docs/gguf.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/value.hpp"
#include "models/tensor_file.hpp"

namespace troupe {

struct gguf_file {
  std::uint32_t version = 0;
  value metadata; // all key-value pairs as one object, in file order; uint64 above int64 become doubles
  std::vector<file_tensor> tensors;
};

// `bytes` must outlive the tensors. `name` is for error lines. Throws load_error; takes memory in proportion to the file at most.
gguf_file parse_gguf(std::span<const std::byte> bytes, const std::string& name);

// Does the file begin like a GGUF one?
bool looks_like_gguf(std::span<const std::byte> bytes);

} // namespace troupe
