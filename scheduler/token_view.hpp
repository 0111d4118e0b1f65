// What a sequence consists of so far: its prompt, then its outputs.
#pragma once

#include <cstdint>
#include <span>

#include "core/ids.hpp"

namespace troupe {

struct token_view {
  std::span<const token_id> prompt, outputs;

  std::int32_t size() const { return static_cast<std::int32_t>(prompt.size() + outputs.size()); }
  token_id operator[](std::int32_t position) const {
    const auto p = static_cast<std::size_t>(position);
    return p < prompt.size() ? prompt[p] : outputs[p - prompt.size()];
  }
};

} // namespace troupe
