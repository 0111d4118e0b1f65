// Restart intensity, as in OTP: so many restarts within a period, then give up. Time is an argument.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>

namespace troupe::actors {

class restart_policy {
 public:
  restart_policy(std::int32_t max_restarts, std::chrono::nanoseconds period)
      : max_restarts_(max_restarts), period_ns_(static_cast<std::uint64_t>(period.count())) {}

  // A device was lost at `now_ns`. May it be replaced? Barren ones, which had work and completed no step of it, count whatever their
  // distance in time: a hang that takes longer than the period to notice must not go on for ever.
  bool allow(std::uint64_t now_ns, bool barren) {
    barren_ = barren ? barren_ + 1 : 0;
    while (!restarts_.empty() && now_ns - restarts_.front() > period_ns_) restarts_.pop_front();
    if (static_cast<std::int32_t>(restarts_.size()) >= max_restarts_ || barren_ > max_restarts_) return false;
    restarts_.push_back(now_ns);
    return true;
  }

 private:
  std::int32_t max_restarts_;
  std::uint64_t period_ns_;
  std::int32_t barren_ = 0;
  std::deque<std::uint64_t> restarts_;
};

} // namespace troupe::actors
