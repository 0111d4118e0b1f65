// Decides what each step computes and absorbs what came back. Pure: no clock, thread, random number or I/O; time is an argument.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/error.hpp"
#include "core/step.hpp"
#include "scheduler/sequence.hpp"

namespace troupe {

struct scheduler_config {
  executor_info device;
  std::int32_t max_waiting = 1024;   // sequences; add() beyond it is `overloaded`
  std::int32_t plans_in_flight = 2;  // 2: one step ahead
};

struct scheduler_stats {
  std::int32_t running = 0;
  std::int32_t waiting = 0;
  std::int32_t plans_in_flight = 0;
  std::int32_t blocks_total = 0;
  std::int32_t blocks_free = 0;
  std::int32_t blocks_cached = 0;
  std::uint64_t preemptions = 0;     // since construction
};

class scheduler {
 public:
  explicit scheduler(scheduler_config config);
  ~scheduler();
  scheduler(scheduler&&) noexcept;

  // Admits or refuses: invalid_request when prompt + 1 token can never fit (context or an empty pool), overloaded when the queue is full.
  std::optional<error> add(sequence_request request, std::uint64_t now_ns);
  // The next plan, one step ahead of the results; none when nothing can be planned or plans_in_flight are out.
  std::optional<step_plan> schedule(std::uint64_t now_ns);
  // Absorbs a result. One of an older epoch, a repeated or unknown step changes nothing.
  std::vector<sequence_update> apply(const step_result& result, std::uint64_t now_ns);
  // Ends a sequence from outside: client gone, stop string found. False when it is not (or no longer) known. Emits no update.
  bool remove(sequence_id id);
  // All device state is gone: raises the epoch and puts every running sequence back in the queue, to be recomputed. Returns
  // those that were in flight at two losses in a row, failed.
  std::vector<sequence_update> device_lost(std::uint64_t now_ns);
  // Ends every sequence, failed with `reason`.
  std::vector<sequence_update> fail_all(const error& reason, std::uint64_t now_ns);

  scheduler_stats stats() const;
  epoch_number epoch() const;

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

} // namespace troupe
