// An executor in front of another that notes when each step ran and what was in it: what a device does under a serving side.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "core/step.hpp"

namespace troupe::bench {

struct recorded_step {
  std::uint64_t begin_ns = 0, end_ns = 0; // steady clock; from the plan's coming to its result
  std::int64_t decode_rows = 0;
  std::int64_t decode_positions = 0; // sum over the rows
  std::int64_t prefill_tokens = 0;
};

// Written by the device's thread, read by others.
class step_log {
 public:
  void add(const recorded_step& step) {
    const std::lock_guard lock(guard_);
    steps_.push_back(step);
  }
  // What came since the last call.
  std::vector<recorded_step> take() {
    const std::lock_guard lock(guard_);
    return std::exchange(steps_, {});
  }

 private:
  std::mutex guard_;
  std::vector<recorded_step> steps_;
};

class recording_executor final : public step_executor {
 public:
  recording_executor(std::unique_ptr<step_executor> inner, std::shared_ptr<step_log> log)
      : inner_(std::move(inner)), log_(std::move(log)) {}

  executor_info info() const override { return inner_->info(); }
  void submit(const step_plan& plan, deliver_fn deliver) override;

 private:
  std::unique_ptr<step_executor> inner_;
  std::shared_ptr<step_log> log_;
};

} // namespace troupe::bench
