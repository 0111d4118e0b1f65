#include "apps/keeper_process.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "actors/child_process.hpp"

namespace troupe::apps {
namespace {

constexpr std::chrono::milliseconds between_looks{1000};
constexpr int most_failed_looks = 3; // each with the client's own patience behind it

std::chrono::milliseconds delay_before(int attempt) { return std::chrono::milliseconds(100) * (1 << std::min(attempt, 6)); }

} // namespace

keeper_process::keeper_process(std::shared_ptr<telemetry::metrics> metrics)
    : metrics_(std::move(metrics)), thread_([this](const std::stop_token& stop) { supervise(stop); }) {}

void keeper_process::supervise(const std::stop_token& stop) {
  const std::atomic<bool> never{false};
  for (int attempt = 0; true; ++attempt) {
    const std::string end = run_one(stop);
    if (stop.stop_requested()) return;
    metrics_->kept_weights(0, 0, 0);
    metrics_->keeper_restarted();
    spdlog::warn("the keeper of weights {}; the next worker loads them anew", end);
    pause(stop, delay_before(attempt), never);
  }
}

// How it ended.
std::string keeper_process::run_one(const std::stop_token& stop) {
  std::atomic<bool> ended{false};
  std::string how;
  try {
    const actors::child_process child({"/proc/self/exe", "keeper"}, line(), [&](int status) {
      how = "ended with " + actors::describe_status(status);
      const std::lock_guard lock(guard_);
      ended = true;
      change_.notify_all();
    });
    if (!answers(stop, ended)) return "does not answer";
  } catch (const std::exception& e) {
    return e.what();
  }
  return how;
}

// Looks at it until it ends, or is to be ended; false when it does not answer.
bool keeper_process::answers(const std::stop_token& stop, const std::atomic<bool>& ended) {
  keeper::keeper_counts told;
  int failed = 0;
  while (true) {
    pause(stop, between_looks, ended);
    if (stop.stop_requested() || ended) return true;
    const auto counts = keeper::query(at_);
    failed = counts ? 0 : failed + 1;
    if (failed == most_failed_looks) return false;
    if (!counts) continue;
    metrics_->kept_weights(counts->kept_bytes, counts->sealed - told.sealed, counts->handed_out - told.handed_out);
    told = *counts;
  }
}

void keeper_process::pause(const std::stop_token& stop, std::chrono::milliseconds time, const std::atomic<bool>& ended) {
  std::unique_lock lock(guard_);
  change_.wait_for(lock, stop, time, [&] { return ended.load(); });
}

} // namespace troupe::apps
