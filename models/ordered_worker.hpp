// A thread that finishes jobs in the order in which they came.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace troupe {

class ordered_worker {
 public:
  // `start` runs first, on the thread. Jobs must not throw.
  explicit ordered_worker(std::function<void()> start);
  ~ordered_worker(); // after the last job
  ordered_worker(const ordered_worker&) = delete;
  ordered_worker& operator=(const ordered_worker&) = delete;

  void push(std::function<void()> job);
  // Blocks until fewer than `count` jobs are unfinished; `count` >= 1.
  void wait_below(std::size_t count);

 private:
  void work();

  std::mutex guard_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_; // the first is at work
  bool ending_ = false;
  std::function<void()> start_;
  std::thread thread_;
};

} // namespace troupe
