// The keeper of a serving process: started with it, looked after, and gone with it.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>

#include "device/keeper/client.hpp"
#include "telemetry/metrics.hpp"

namespace troupe::apps {

class keeper_process {
 public:
  // Starts `troupe keeper` and, whenever it ends or no longer answers, another one at the same address: with it goes what it held, and the
  // next worker loads its weights anew. What it holds is told to `metrics` every second.
  explicit keeper_process(std::shared_ptr<telemetry::metrics> metrics);

  // What a worker's standard input begins with (apps/keeper_line.hpp).
  std::string line() const { return at_.name + " " + at_.token; }

 private:
  void supervise(const std::stop_token& stop);
  std::string run_one(const std::stop_token& stop);
  bool answers(const std::stop_token& stop, const std::atomic<bool>& ended);
  void pause(const std::stop_token& stop, std::chrono::milliseconds time, const std::atomic<bool>& ended);

  const keeper::address at_ = keeper::random_address();
  const std::shared_ptr<telemetry::metrics> metrics_;
  std::mutex guard_;
  std::condition_variable_any change_;
  std::jthread thread_; // ends first
};

} // namespace troupe::apps
