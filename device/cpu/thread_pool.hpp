// The CPU device's workers: one parallel loop at a time, no allocation per loop.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace troupe::cpu {

class thread_pool {
 public:
  // `threads` in all, the calling one included; at least 1. Throws std::system_error when the system gives no more threads.
  explicit thread_pool(int threads);
  ~thread_pool();
  thread_pool(const thread_pool&) = delete;
  thread_pool& operator=(const thread_pool&) = delete;

  int size() const noexcept;

  // Calls body(begin, end) over disjoint ranges that cover [0, count), each a multiple of `grain` but the last, on all threads; returns
  // when all are done. The split never changes a result: bodies write disjoint outputs. Not re-entrant. When bodies throw, the other
  // ranges are still run, and then the first exception comes out of here.
  template <class Body>
  void run(std::int64_t count, std::int64_t grain, Body&& body) {
    using plain = std::remove_reference_t<Body>;
    run_erased(count, grain, const_cast<void*>(static_cast<const void*>(&body)),
               [](void* context, std::int64_t begin, std::int64_t end) { (*static_cast<plain*>(context))(begin, end); });
  }

 private:
  using erased_body = void (*)(void*, std::int64_t, std::int64_t);
  void run_erased(std::int64_t count, std::int64_t grain, void* context, erased_body body);

  struct impl;
  std::unique_ptr<impl> impl_;
};

} // namespace troupe::cpu
