// What both weight formats boil down to: named tensors as byte ranges of one file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.hpp"

namespace troupe {

// `data` lies inside the file and holds exactly the bytes that type and shape ask for (the reader has checked).
struct file_tensor {
  std::string name;
  std::string type_name;           // as the format spells it: "BF16", "F8_E4M3", "Q4_1"
  std::optional<dtype> type;       // none: a type that no kernel here reads
  std::vector<std::int64_t> shape; // outermost first, for both formats
  std::span<const std::byte> data;
};

} // namespace troupe
