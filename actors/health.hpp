// Live, ready and progressing: three answers, from facts that the actors report. Thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/clock.hpp"
#include "core/service.hpp"

namespace troupe::actors {

// Health means progress: with requests in the engine and no step completed for longer than the step deadline the serving side is
// neither ready nor live, whatever its threads and processes look like. While lost groups are being replaced requests still queue, so it
// stays ready; `patience` (a group's start) is added to the deadline while none is up. When the last group was given up it is not live for
// good.
class health_board {
 public:
  // `groups_wait` hears what is missing while any group waits for room, in the order in which that changes; may be empty.
  health_board(std::int32_t replicas, std::chrono::nanoseconds step_deadline, std::chrono::nanoseconds patience,
               std::function<void(const std::string& for_what)> groups_wait = {});

  void group_up(std::int32_t replica, bool up); // its supervisor: false while it is being replaced
  // Its supervisor: no machine has room for it, and what is missing; empty when it waits no more. While all groups wait so, the fault is
  // not this process's: it stays live. It takes no requests after 10 s of that and is not ready; those that it took keep their places.
  void group_waits(std::int32_t replica, const std::string& for_what);
  void step_completed(std::int32_t replica);                           // its scheduler: the heartbeat
  void give_group_up(std::int32_t replica, const std::string& reason); // with the last one the whole fails
  void fail(const std::string& reason);                                // escalation; the first reason stays
  void stop();
  void drain();

  bool accepts(std::uint64_t now = now_ns()) const; // not draining, failed, stopped, or long without room for any group
  error refusal() const;                            // why not
  bool failed() const { return failed_; }
  std::uint64_t steps(std::int32_t replica) const { return of(replica).steps; }
  bool is_up(std::int32_t replica) const { return of(replica).up; }
  bool other_is_up(std::int32_t replica) const;
  std::uint64_t losses(std::int32_t replica) const { return of(replica).losses; } // how often it went down
  // `busy_since`: when the engine last went from empty to not empty; none while it is empty.
  service_status status(std::optional<std::uint64_t> busy_since, std::uint64_t now) const;

 private:
  struct group {
    std::atomic<bool> up{false};
    std::atomic<bool> given_up{false};
    std::atomic<bool> waits{false};
    std::atomic<std::uint64_t> steps{0};
    std::atomic<std::uint64_t> losses{0};
  };

  group& of(std::int32_t replica) { return groups_[static_cast<std::size_t>(replica)]; }
  const group& of(std::int32_t replica) const { return groups_[static_cast<std::size_t>(replica)]; }
  std::size_t groups_up() const;
  std::string reason() const;
  std::string missing() const;
  void look_for_room();
  bool long_without_room(std::uint64_t now) const;

  const std::uint64_t step_deadline_ns_;
  const std::uint64_t patience_ns_;
  const std::function<void(const std::string&)> groups_wait_;
  std::vector<group> groups_;
  std::atomic<bool> draining_{false};
  std::atomic<bool> failed_{false};
  std::atomic<bool> stopped_{false};
  std::atomic<std::uint64_t> last_progress_ns_{0};
  std::atomic<std::uint64_t> without_room_since_ns_{0}; // all groups that were not given up wait for room; 0: not so
  mutable std::mutex mutex_;                            // of reason_ and missing_, and of looks for room
  std::string reason_;
  std::string missing_;
};

} // namespace troupe::actors
