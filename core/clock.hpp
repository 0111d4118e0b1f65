#pragma once

#include <chrono>
#include <cstdint>

namespace troupe {

// Nanoseconds on the machine's steady clock, the same in all its processes.
inline std::uint64_t now_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

} // namespace troupe
