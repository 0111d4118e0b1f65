// Counts what take_times() tells: one rank's, used by one thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <utility>

#include "transport/collective/communicator.hpp"

namespace troupe {

class call_times {
 public:
  using clock = std::chrono::steady_clock;

  // A call that began at `begin`, to which the last peer had come at `all_there`, and that has ended now.
  void add(std::uint64_t bytes, clock::time_point begin, clock::time_point all_there) {
    sums_.calls += 1;
    sums_.bytes += bytes;
    sums_.wait_ns += nanoseconds(all_there - begin);
    sums_.move_ns += nanoseconds(clock::now() - all_there);
  }

  collective_times take() { return std::exchange(sums_, {}); }

 private:
  static std::uint64_t nanoseconds(clock::duration time) {
    return static_cast<std::uint64_t>(std::max<std::int64_t>(0, std::chrono::duration_cast<std::chrono::nanoseconds>(time).count()));
  }

  collective_times sums_;
};

} // namespace troupe
