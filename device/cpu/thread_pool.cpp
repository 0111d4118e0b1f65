#include "device/cpu/thread_pool.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace troupe::cpu {

namespace {

// How long a thread that has nothing to do looks for work before it sleeps: longer than the gaps between the ops of one
// step, short enough that an idle pool leaves the cores to others.
constexpr auto spin_time = std::chrono::microseconds(60);
constexpr int pauses_per_clock_read = 16;
constexpr std::int64_t chunks_per_thread = 4; // a thread that the system holds up costs at most one chunk's time

void pause_briefly() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// True as soon as `ready()` is, false when spin_time has passed without.
template <class Ready>
bool spin_until(Ready&& ready) {
  if (ready()) return true;
  const auto deadline = std::chrono::steady_clock::now() + spin_time;
  do {
    for (int i = 0; i < pauses_per_clock_read; ++i) {
      pause_briefly();
      if (ready()) return true;
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return false;
}

struct loop_shape {
  std::int64_t count;
  std::int64_t grain;
  std::int64_t chunks;

  std::int64_t grains() const { return (count - 1) / grain + 1; }
  // Where chunk `index` begins; of chunk number `chunks`, where the loop ends.
  std::int64_t start_of(std::int64_t index) const {
    const std::int64_t each = grains() / chunks;
    const std::int64_t larger = grains() % chunks; // the first chunks have one grain more
    return std::min(count, (index * each + std::min(index, larger)) * grain);
  }
};

} // namespace

// A loop is cut into chunks that threads claim one by one, the last chunk first. `ticket` holds the loop's number (high half) and how many
// chunks are unclaimed (low half), so a claim (compare-and-swap) succeeds only while that very loop has chunks left. Hence:
//  - the caller never waits for a thread that has claimed nothing (one that sleeps or is not scheduled);
//  - a late thread cannot touch a loop that has ended: the job's fields may change under its reads (they are atomics), but then
//    its claim fails, and it drops what it read.
struct thread_pool::impl {
  std::atomic<std::uint64_t> ticket{0};
  std::atomic<std::int64_t> count{0};
  std::atomic<std::int64_t> grain{1};
  std::atomic<std::int64_t> chunks{0}; // of nearly equal size, each a number of grains
  std::atomic<void*> context{nullptr};
  std::atomic<erased_body> body{nullptr};

  alignas(64) std::atomic<std::uint32_t> unfinished{0}; // chunks of the current loop that are not done
  alignas(64) std::atomic<std::uint32_t> loops{0};      // loops published; what sleeping threads wait on
  std::atomic<bool> stopping{false};
  std::vector<std::thread> workers;

  std::mutex failing;
  std::exception_ptr failure; // the first of the current loop; read by the caller once no chunk is unfinished

  void keep_failure() {
    const std::lock_guard lock(failing);
    if (!failure) failure = std::current_exception();
  }

  // Claims and runs one chunk of the current loop; false when none is left.
  bool work_once() {
    std::uint64_t seen = ticket.load(std::memory_order_acquire);
    for (;;) {
      const loop_shape shape{count.load(std::memory_order_relaxed), grain.load(std::memory_order_relaxed),
                             chunks.load(std::memory_order_relaxed)};
      void* const job = context.load(std::memory_order_relaxed);
      const erased_body call = body.load(std::memory_order_relaxed);
      const auto unclaimed = static_cast<std::uint32_t>(seen);
      if (unclaimed == 0) return false;
      if (!ticket.compare_exchange_weak(seen, seen - 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
      try {
        call(job, shape.start_of(unclaimed - 1), shape.start_of(unclaimed));
      } catch (...) {
        keep_failure();
      }
      if (unfinished.fetch_sub(1, std::memory_order_acq_rel) == 1) unfinished.notify_one();
      return true;
    }
  }

  void worker_loop() {
    std::uint32_t seen = 0;
    for (;;) {
      spin_until([&] { return loops.load(std::memory_order_acquire) != seen; });
      loops.wait(seen, std::memory_order_seq_cst);
      seen = loops.load(std::memory_order_acquire);
      if (stopping.load(std::memory_order_acquire)) return;
      while (work_once()) {
      }
    }
  }

  void announce() {
    loops.fetch_add(1, std::memory_order_seq_cst);
    loops.notify_all();
  }

  void stop() {
    stopping.store(true, std::memory_order_release);
    announce();
    for (std::thread& worker : workers) worker.join();
  }

  // The chunks that are left to others, and what went wrong in any.
  void finish() {
    const auto done = [this] { return unfinished.load(std::memory_order_acquire) == 0; };
    if (!spin_until(done)) {
      for (std::uint32_t left = 0; (left = unfinished.load(std::memory_order_acquire)) != 0;) unfinished.wait(left);
    }
    if (failure) std::rethrow_exception(std::exchange(failure, nullptr));
  }
};

thread_pool::thread_pool(int threads) : impl_(std::make_unique<impl>()) {
  impl* const state = impl_.get();
  try {
    for (int i = 1; i < threads; ++i) state->workers.emplace_back([state] { state->worker_loop(); });
  } catch (...) { // the system has no thread left: those that run already must end before their memory does
    state->stop();
    throw;
  }
}

thread_pool::~thread_pool() { impl_->stop(); }

int thread_pool::size() const noexcept { return static_cast<int>(impl_->workers.size()) + 1; }

void thread_pool::run_erased(std::int64_t count, std::int64_t grain, void* context, erased_body body) {
  if (count <= 0) return;
  grain = std::max<std::int64_t>(grain, 1);
  if (impl_->workers.empty() || count <= grain) {
    body(context, 0, count);
    return;
  }
  const std::int64_t grains = loop_shape{count, grain, 1}.grains();
  const auto chunks = static_cast<std::uint32_t>(std::min(grains, size() * chunks_per_thread));

  impl& state = *impl_;
  state.count.store(count, std::memory_order_relaxed);
  state.grain.store(grain, std::memory_order_relaxed);
  state.chunks.store(chunks, std::memory_order_relaxed);
  state.context.store(context, std::memory_order_relaxed);
  state.body.store(body, std::memory_order_relaxed);
  state.unfinished.store(chunks, std::memory_order_relaxed);
  const std::uint64_t number = (state.ticket.load(std::memory_order_relaxed) >> 32) + 1;
  state.ticket.store(number << 32 | chunks, std::memory_order_release);
  state.announce();
  while (state.work_once()) {
  }
  state.finish();
}

} // namespace troupe::cpu
