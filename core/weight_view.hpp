#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.hpp"

namespace troupe {

// A stored matrix, row-major: `rows` outputs x `columns` inputs, or a vector with rows = 1. Not owned.
struct weight_view {
  dtype type = dtype::f32;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  const std::byte* data = nullptr;

  explicit operator bool() const { return data != nullptr; }
};

} // namespace troupe
