// Live, ready and progressing: three answers, from facts that the actors report. Thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "core/service.hpp"

namespace troupe::actors {

// Steady-clock nanoseconds, as in sequence times and arrival times.
std::uint64_t now_ns();

// Health means progress: with requests in the engine and no step completed for longer than the step deadline the serving side is
// neither ready nor live, whatever its threads and processes look like. While a lost device is being replaced requests still queue,
// so it stays ready; `patience` (a device's start) is added to the deadline then. After escalation it is not live for good.
class health_board {
 public:
  explicit health_board(std::chrono::nanoseconds step_deadline, std::chrono::nanoseconds patience);

  void device_up(bool up);              // the supervisor: false while a device is being replaced
  void step_completed();                // the scheduler: its heartbeat
  void fail(const std::string& reason); // escalation; the first reason stays
  void stop();
  void drain();

  bool accepts() const;  // not draining, failed or stopped
  error refusal() const; // why not
  std::uint64_t steps() const { return steps_; }
  // `busy_since`: when the engine last went from empty to not empty; none while it is empty.
  service_status status(std::optional<std::uint64_t> busy_since, std::uint64_t now) const;

 private:
  std::string reason() const;

  const std::uint64_t step_deadline_ns_;
  const std::uint64_t patience_ns_;
  std::atomic<bool> device_up_{false};
  std::atomic<bool> draining_{false};
  std::atomic<bool> failed_{false};
  std::atomic<bool> stopped_{false};
  std::atomic<std::uint64_t> steps_{0};
  std::atomic<std::uint64_t> last_progress_ns_{0};
  mutable std::mutex mutex_; // of reason_
  std::string reason_;
};

} // namespace troupe::actors
