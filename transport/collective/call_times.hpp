// Counts what take_times() tells: one rank's, used by one thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

#include "transport/collective/communicator.hpp"

namespace troupe {

class call_times {
 public:
  using clock = std::chrono::steady_clock;

  explicit call_times(int size) : waits_(static_cast<std::size_t>(size)) {}

  // A call that began at `begin`, for which `latest` came last at `all_there`, and that has ended now. latest: -1 where nobody was waited
  // for.
  void add(std::uint64_t bytes, clock::time_point begin, clock::time_point all_there, int latest) {
    const auto wait = nanoseconds(all_there - begin);
    sums_.calls += 1;
    sums_.bytes += bytes;
    sums_.wait_ns += wait;
    sums_.move_ns += nanoseconds(clock::now() - all_there);
    if (latest >= 0) waits_[static_cast<std::size_t>(latest)] += wait;
  }

  collective_times take() {
    collective_times taken = sums_;
    const auto longest = std::max_element(waits_.begin(), waits_.end());
    if (*longest > 0) taken.latest_peer = static_cast<int>(longest - waits_.begin());
    sums_ = {};
    std::fill(waits_.begin(), waits_.end(), 0);
    return taken;
  }

 private:
  static std::uint64_t nanoseconds(clock::duration time) {
    return static_cast<std::uint64_t>(std::max<std::int64_t>(0, std::chrono::duration_cast<std::chrono::nanoseconds>(time).count()));
  }

  collective_times sums_;
  std::vector<std::uint64_t> waits_; // by peer
};

} // namespace troupe
