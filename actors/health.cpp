#include "actors/health.hpp"

#include <algorithm>

namespace troupe::actors {

std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count());
}

health_board::health_board(std::chrono::nanoseconds step_deadline, std::chrono::nanoseconds patience)
    : step_deadline_ns_(static_cast<std::uint64_t>(step_deadline.count())), patience_ns_(static_cast<std::uint64_t>(patience.count())) {}

void health_board::device_up(bool up) {
  if (up) last_progress_ns_ = now_ns(); // the time it took to come up is not held against its steps
  device_up_ = up;
}

void health_board::step_completed() {
  ++steps_;
  last_progress_ns_ = now_ns();
}

void health_board::fail(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (failed_) return;
  reason_ = reason;
  failed_ = true;
}

void health_board::stop() { stopped_ = true; }

void health_board::drain() { draining_ = true; }

bool health_board::accepts() const { return !draining_ && !failed_ && !stopped_; }

std::string health_board::reason() const {
  const std::lock_guard lock(mutex_);
  return reason_;
}

error health_board::refusal() const {
  return {error_kind::unavailable, failed_ ? "the model cannot be served any more: " + reason() : "the server is stopping", "",
          std::nullopt};
}

service_status health_board::status(std::optional<std::uint64_t> busy_since, std::uint64_t now) const {
  service_status s;
  s.draining = draining_;
  if (stopped_) return {false, false, true, "stopped"};
  if (failed_) return {false, false, s.draining, reason()};
  // A quarter more than the deadline: the scheduler itself gets to act first.
  const std::uint64_t limit = step_deadline_ns_ + step_deadline_ns_ / 4 + (device_up_ ? 0 : patience_ns_);
  const std::uint64_t last = std::max(last_progress_ns_.load(), busy_since.value_or(now));
  if (now > last && now - last > limit) {
    return {false, false, s.draining, "no step has completed for " + std::to_string((now - last) / 1'000'000'000U) + " s"};
  }
  s.ready = !s.draining;
  if (s.draining) s.reason = "draining";
  return s;
}

} // namespace troupe::actors
