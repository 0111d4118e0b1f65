// How much of its time a device stands idle between the decode steps of sequences that it is working on. Pure.
#pragma once

#include <cstdint>
#include <optional>

namespace troupe::telemetry {

struct time_span {
  std::uint64_t begin_ns = 0;
  std::uint64_t end_ns = 0;

  friend bool operator==(const time_span&, const time_span&) = default;
};

struct idle_summary {
  std::uint64_t steps = 0; // whose gap before them was counted
  std::uint64_t busy_ns = 0;
  std::uint64_t idle_ns = 0;

  // Of the time from the first counted gap to the end of the last step; 0 without steps.
  double share() const { return busy_ns + idle_ns == 0 ? 0 : static_cast<double>(idle_ns) / static_cast<double>(busy_ns + idle_ns); }
};

class step_gaps {
 public:
  // One step's computing, in the order of steps. A step that decodes goes on with sequences of the step before it, so the device had work
  // all the while and the gap between the two was idle time. Returns that gap unless it is empty. A new epoch has no step before it.
  std::optional<time_span> observe(std::uint64_t epoch, const time_span& compute, bool decodes);
  const idle_summary& summary() const { return summary_; }

 private:
  std::optional<std::uint64_t> last_end_;
  std::uint64_t epoch_ = 0;
  idle_summary summary_;
};

} // namespace troupe::telemetry
