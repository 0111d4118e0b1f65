// Waiting for what other threads and processes bring about.
#pragma once

#include <chrono>
#include <thread>

namespace troupe::test {

// Generous, because sanitizer builds on busy machines are slow.
inline constexpr std::chrono::seconds kPatience{60};

// Whether `holds()` becomes true within `limit`.
template <class F>
bool eventually(F holds, std::chrono::milliseconds limit = kPatience) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!holds()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

} // namespace troupe::test
