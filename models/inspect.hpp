// What a checkpoint holds and what memory it needs, for `troupe inspect`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/dtype.hpp"
#include "core/value.hpp"
#include "models/checkpoint.hpp"

namespace troupe {

struct inspect_options {
  std::optional<std::int32_t> context; // tokens per sequence; none: the model's limit
  std::int32_t sequences = 1;
  dtype kv_type = dtype::f16; // f32, f16 or bf16
  bool list_tensors = false;  // one line per stored tensor
};

// A table to read, several lines, each ended. Looks at the headers only: weights are not touched, so a checkpoint whose weights would not
// load can still be described. Throws nothing.
std::string describe_checkpoint(const checkpoint& source, const inspect_options& options = {});

// The same as an object: format, path, family, shapes, parameters, weight_bytes, weight_bytes_by_type, rope, context, kv, memory
// (bytes throughout), and with list_tensors "tensors".
value describe_checkpoint_json(const checkpoint& source, const inspect_options& options = {});

} // namespace troupe
