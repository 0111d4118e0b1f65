// Two ways to spread a loop over the pool.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "device/cpu/thread_pool.hpp"

namespace troupe::cpu {

inline constexpr std::int64_t inline_work = 16384; // elements, a few microseconds

// body(begin, end) over ranges of rows of equal cost; at once on the caller where waking the pool would cost more than the work.
template <class Body>
void for_rows(thread_pool& pool, std::int64_t rows, std::int64_t elements_per_row, Body&& body) {
  if (rows * elements_per_row <= inline_work || pool.size() == 1) {
    if (rows > 0) body(std::int64_t{0}, rows);
    return;
  }
  const std::int64_t grain = std::max<std::int64_t>(1, inline_work / 2 / std::max<std::int64_t>(1, elements_per_row));
  pool.run(rows, grain, body);
}

// body(worker, i) for every i in [0, count), in that order as far as workers are free: for units of unequal cost, the longest first.
// `worker` is below pool.size(), and two calls with the same one never overlap.
template <class Body>
void share_out(thread_pool& pool, std::int64_t count, Body&& body) {
  std::atomic<std::int64_t> next{0};
  pool.run(std::min<std::int64_t>(pool.size(), count), 1, [&](std::int64_t worker, std::int64_t) {
    for (std::int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) body(worker, i);
  });
}

} // namespace troupe::cpu
