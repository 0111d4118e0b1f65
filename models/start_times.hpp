// Where the time of a start goes, for one log line.
#pragma once

#include <cstdio>
#include <string>

#include "core/clock.hpp"

namespace troupe {

class start_times {
 public:
  // What happened since the last lap, or since this was made.
  void lap(const std::string& what) {
    const std::uint64_t now = now_ns();
    char seconds[32];
    std::snprintf(seconds, sizeof seconds, " %.3f s", static_cast<double>(now - last_) * 1e-9);
    text_ += (text_.empty() ? "" : ", ") + what + seconds;
    last_ = now;
  }
  const std::string& text() const { return text_; } // "weights 0.120 s, graphs 0.431 s"

 private:
  std::uint64_t last_ = now_ns();
  std::string text_;
};

} // namespace troupe
