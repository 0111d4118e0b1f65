#include "models/ordered_worker.hpp"

#include <utility>

namespace troupe {

ordered_worker::ordered_worker(std::function<void()> start) : start_(std::move(start)), thread_([this] { work(); }) {}

ordered_worker::~ordered_worker() {
  {
    const std::lock_guard lock(guard_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void ordered_worker::push(std::function<void()> job) {
  {
    const std::lock_guard lock(guard_);
    jobs_.push_back(std::move(job));
  }
  changed_.notify_all();
}

void ordered_worker::wait_below(std::size_t count) {
  std::unique_lock lock(guard_);
  changed_.wait(lock, [&] { return jobs_.size() < count; });
}

void ordered_worker::work() {
  start_();
  std::unique_lock lock(guard_);
  for (;;) {
    changed_.wait(lock, [&] { return ending_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    const std::function<void()>& job = jobs_.front(); // stays where it is while others are added
    lock.unlock();
    job();
    lock.lock();
    jobs_.pop_front();
    changed_.notify_all();
  }
}

} // namespace troupe
