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
  std::size_t stride = 0; // bytes from row to row, where these are columns of a wider matrix; 0: rows lie one behind the other
  // Of the rows and columns, those at the end that are zeros and stored nowhere. Where columns are, there is a stride.
  std::int64_t padding_rows = 0;
  std::int64_t padding_columns = 0;

  explicit operator bool() const { return data != nullptr; }
  // Elements of a row that are stored; the others are zeros.
  std::int64_t stored_columns(std::int64_t row) const { return row < rows - padding_rows ? columns - padding_columns : 0; }
  // Of a row that is stored.
  const std::byte* row(std::int64_t index) const {
    return data + static_cast<std::size_t>(index) * (stride != 0 ? stride : row_bytes(type, static_cast<std::size_t>(columns)));
  }
};

// Of its elements, padding included; an empty view has none.
inline std::size_t bytes_of(const weight_view& view) {
  return view ? static_cast<std::size_t>(view.rows) * row_bytes(view.type, static_cast<std::size_t>(view.columns)) : 0;
}

} // namespace troupe
