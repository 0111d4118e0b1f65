#include "actors/health.hpp"

#include <algorithm>
#include <utility>

namespace troupe::actors {

namespace {

constexpr std::uint64_t kQueueingWithoutRoomNs = 10'000'000'000;

} // namespace

health_board::health_board(std::int32_t replicas, std::chrono::nanoseconds step_deadline, std::chrono::nanoseconds patience,
                           std::function<void(const std::string&)> groups_wait)
    : step_deadline_ns_(static_cast<std::uint64_t>(step_deadline.count())),
      patience_ns_(static_cast<std::uint64_t>(patience.count())),
      groups_wait_(std::move(groups_wait)),
      groups_(static_cast<std::size_t>(std::max(1, replicas))) {}

void health_board::group_up(std::int32_t replica, bool up) {
  if (up) last_progress_ns_ = now_ns(); // the time it took to come up is not held against its steps
  if (of(replica).up.exchange(up) && !up) ++of(replica).losses;
  look_for_room();
}

void health_board::group_waits(std::int32_t replica, const std::string& for_what) {
  {
    const std::lock_guard lock(mutex_);
    const bool waits = !for_what.empty();
    if (waits) missing_ = for_what;
    const bool did = of(replica).waits.exchange(waits);
    if (did && !waits) last_progress_ns_ = now_ns(); // nor is the time without room
    const bool any = std::any_of(groups_.begin(), groups_.end(), [](const group& g) { return g.waits.load(); });
    if ((did || waits) && groups_wait_) groups_wait_(any ? missing_ : std::string());
  }
  look_for_room();
}

// Called by supervisors, each when its own group has changed: whoever looks last sees all changes.
void health_board::look_for_room() {
  const std::lock_guard lock(mutex_);
  const bool none = std::all_of(groups_.begin(), groups_.end(), [](const group& g) { return g.given_up || (g.waits && !g.up); });
  if (!none || failed_) {
    without_room_since_ns_ = 0;
    return;
  }
  if (without_room_since_ns_ == 0) without_room_since_ns_ = now_ns();
}

bool health_board::long_without_room(std::uint64_t now) const {
  const std::uint64_t since = without_room_since_ns_;
  return since != 0 && now > since + kQueueingWithoutRoomNs;
}

void health_board::step_completed(std::int32_t replica) {
  ++of(replica).steps;
  last_progress_ns_ = now_ns();
}

void health_board::give_group_up(std::int32_t replica, const std::string& reason) {
  of(replica).given_up = true;
  group_up(replica, false);
  if (std::all_of(groups_.begin(), groups_.end(), [](const group& g) { return g.given_up.load(); })) fail(reason);
}

bool health_board::other_is_up(std::int32_t replica) const { return groups_up() > (of(replica).up ? 1 : 0); }

std::size_t health_board::groups_up() const {
  return static_cast<std::size_t>(std::count_if(groups_.begin(), groups_.end(), [](const group& g) { return g.up.load(); }));
}

void health_board::fail(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (failed_) return;
  reason_ = reason;
  failed_ = true;
}

void health_board::stop() { stopped_ = true; }

void health_board::drain() { draining_ = true; }

bool health_board::accepts(std::uint64_t now) const { return !draining_ && !failed_ && !stopped_ && !long_without_room(now); }

std::string health_board::reason() const {
  const std::lock_guard lock(mutex_);
  return reason_;
}

std::string health_board::missing() const {
  const std::lock_guard lock(mutex_);
  return missing_;
}

error health_board::refusal() const {
  if (failed_) return {error_kind::unavailable, "the model cannot be served any more: " + reason(), "", std::nullopt};
  if (draining_ || stopped_) return {error_kind::unavailable, "the server is stopping", "", std::nullopt};
  return {error_kind::unavailable, "the model " + missing(), "", 10};
}

service_status health_board::status(std::optional<std::uint64_t> busy_since, std::uint64_t now) const {
  service_status s;
  s.draining = draining_;
  if (stopped_) return {false, false, true, "stopped"};
  if (failed_) return {false, false, s.draining, reason()};
  if (without_room_since_ns_ != 0) return {true, !s.draining && !long_without_room(now), s.draining, s.draining ? "draining" : missing()};
  const std::size_t up = groups_up();
  // A quarter more than the deadline: the scheduler itself gets to act first.
  const std::uint64_t limit = step_deadline_ns_ + step_deadline_ns_ / 4 + (up > 0 ? 0 : patience_ns_);
  const std::uint64_t last = std::max(last_progress_ns_.load(), busy_since.value_or(now));
  if (now > last && now - last > limit) {
    return {false, false, s.draining, "no step has completed for " + std::to_string((now - last) / 1'000'000'000U) + " s"};
  }
  s.ready = !s.draining;
  if (up < groups_.size() && groups_.size() > 1) {
    s.reason = std::to_string(up) + " of " + std::to_string(groups_.size()) + " replicas are up";
  }
  if (s.draining) s.reason = "draining";
  return s;
}

} // namespace troupe::actors
