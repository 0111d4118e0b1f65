// SIGTERM and SIGINT, taken by a thread that asks for them.
#pragma once

#include <signal.h>

#include <chrono>
#include <ctime>

namespace troupe::apps {

// Made before any other thread, which then all have them blocked.
class shutdown_signals {
 public:
  shutdown_signals() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGTERM);
    sigaddset(&set_, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
    signal(SIGPIPE, SIG_IGN);
  }
  // True when one came within `timeout`.
  bool wait(std::chrono::milliseconds timeout) const {
    const timespec limit{static_cast<time_t>(timeout.count() / 1000), static_cast<long>(timeout.count() % 1000) * 1'000'000L};
    return sigtimedwait(&set_, nullptr, &limit) > 0;
  }

 private:
  sigset_t set_{};
};

} // namespace troupe::apps
