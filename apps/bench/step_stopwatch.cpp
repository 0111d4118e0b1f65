#include "apps/bench/step_stopwatch.hpp"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>

#include "apps/bench/statistics.hpp"

namespace troupe::bench {
namespace {

using steady = std::chrono::steady_clock;

constexpr std::size_t kMostRepetitions = 25;

double nanoseconds_since(steady::time_point begin) { return std::chrono::duration<double, std::nano>(steady::now() - begin).count(); }

} // namespace

step_stopwatch::step_stopwatch(step_executor& executor) : executor_(executor), info_(executor.info()) { write_all_blocks(); }

double step_stopwatch::typical(const timed_shape& shape, double patience_ns) {
  const auto begin = steady::now();
  std::vector<double> taken;
  do {
    taken.push_back(once(shape));
  } while (taken.size() < kMostRepetitions && nanoseconds_since(begin) < patience_ns);
  return midmean(std::move(taken));
}

double step_stopwatch::once(const timed_shape& shape) {
  step_plan open;
  open.closed = std::exchange(open_, {});
  std::int32_t next_block = 0;
  for (slot_id slot = 0; slot < shape.rows; ++slot) {
    open_slot(open, slot, shape.context + 2, next_block);
    add_prefill(open, slot, shape.context - 1, 1);
  }
  if (shape.tokens > 0) open_slot(open, shape.rows, shape.prefix + shape.tokens, next_block);
  step_plan timed;
  if (shape.rows == 0) { // a plan has items: the slot's opening travels with the step itself
    timed = std::exchange(open, {});
  } else {
    submit(open);
    step_plan before;
    add_decodes(before, shape.rows, shape.context);
    submit(before);
  }
  add_decodes(timed, shape.rows, shape.context + 1);
  if (shape.tokens > 0) add_prefill(timed, shape.rows, shape.prefix, shape.tokens);
  const auto begin = steady::now();
  submit(timed);
  return nanoseconds_since(begin);
}

void step_stopwatch::write_all_blocks() {
  step_plan fill;
  std::int32_t next_block = 0;
  const std::int32_t length = std::min({info_.block_size, info_.max_batched_tokens, info_.max_model_len});
  open_slot(fill, 0, length, next_block);
  add_prefill(fill, 0, 0, length);
  submit(fill);
  step_plan spread;
  spread.closed = std::exchange(open_, {});
  for (block_id to = 1; to < info_.num_blocks; ++to) spread.copies.push_back({0, to});
  next_block = 0;
  open_slot(spread, 0, 1, next_block);
  add_prefill(spread, 0, 0, 1);
  submit(spread);
}

void step_stopwatch::open_slot(step_plan& plan, slot_id slot, std::int32_t length, std::int32_t& next_block) {
  sampling_params greedy;
  greedy.temperature = 0;
  plan.opened.push_back({slot, length, greedy});
  open_.push_back(slot);
  block_grant grant{slot, 0, {}};
  for (std::int32_t n = (length + info_.block_size - 1) / info_.block_size; n > 0; --n) grant.blocks.push_back(next_block++);
  plan.grants.push_back(std::move(grant));
}

void step_stopwatch::add_prefill(step_plan& plan, slot_id slot, std::int32_t first, std::int32_t count) const {
  plan.items.push_back({slot, work_kind::prefill, first, count, true, std::nullopt});
  for (std::int32_t i = 0; i < count; ++i) plan.tokens.push_back((first + i * 7919 + 11) % info_.vocab_size);
}

void step_stopwatch::add_decodes(step_plan& plan, std::int32_t rows, std::int32_t position) {
  for (slot_id slot = 0; slot < rows; ++slot) plan.items.push_back({slot, work_kind::decode, position, 1, true, std::nullopt});
}

void step_stopwatch::submit(step_plan& plan) {
  plan.epoch = 1;
  plan.step = ++step_;
  std::string failure;
  executor_.submit(plan, [&](step_outcome outcome) {
    if (const auto* failed = std::get_if<step_failure>(&outcome)) failure = failed->reason;
  });
  if (!failure.empty()) throw std::runtime_error(failure);
}

} // namespace troupe::bench
