// When the start of a rank reached what, for one log line.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/clock.hpp"

namespace troupe {

// Any thread may add to it.
class start_times {
 public:
  explicit start_times(std::uint64_t begun_ns = now_ns()) : begun_(begun_ns) {}

  void reached(std::string what, std::uint64_t at_ns = now_ns()) {
    const std::lock_guard lock(guard_);
    reached_.push_back({at_ns, std::move(what)});
  }

  // "process 0.012 s, weights 0.120 s": after the beginning, in the order in which they were reached.
  std::string text() const {
    const std::lock_guard lock(guard_);
    auto sorted = reached_;
    std::stable_sort(sorted.begin(), sorted.end(), [](const mark& a, const mark& b) { return a.at_ns < b.at_ns; });
    std::string line;
    for (const mark& m : sorted) {
      char seconds[32];
      std::snprintf(seconds, sizeof seconds, " %.3f s", static_cast<double>(m.at_ns - std::min(begun_, m.at_ns)) * 1e-9);
      line += (line.empty() ? "" : ", ") + m.what + seconds;
    }
    return line;
  }

 private:
  struct mark {
    std::uint64_t at_ns;
    std::string what;
  };
  const std::uint64_t begun_;
  mutable std::mutex guard_;
  std::vector<mark> reached_;
};

inline void reached(start_times* start, const char* what) {
  if (start != nullptr) start->reached(what);
}

} // namespace troupe
