#include "apps/bench/step_driver.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <random>
#include <stdexcept>
#include <string>

#include "core/clock.hpp"

namespace troupe::bench {
namespace {

constexpr std::chrono::seconds kPatience{300}; // for one step

scheduler_config config_for(const executor_info& info) {
  scheduler_config config;
  config.device = info;
  config.max_waiting = 1 << 20;
  config.prefix_caching = false; // prompts are to be computed
  return config;
}

} // namespace

step_driver::step_driver(step_executor& executor, telemetry::timeline& timeline)
    : executor_(executor), timeline_(timeline), info_(executor.info()), scheduler_(config_for(info_)) {}

step_driver::~step_driver() {
  std::unique_lock lock(guard_); // the executor still delivers what it was given
  arrived_.wait_for(lock, kPatience, [&] { return arrivals_.size() >= flying_.size(); });
}

driven_run step_driver::run(const std::vector<std::vector<token_id>>& prompts, const run_options& options) {
  driven_run run;
  run.first_token_ns.assign(prompts.size(), 0);
  run.finished_ns.assign(prompts.size(), 0);
  run.outputs.resize(prompts.size());
  run.begin_ns = now_ns();
  try {
    drive(prompts, options, run);
  } catch (...) { // a later run finds nothing of this one
    drop_requests(prompts.size());
    drop_plans();
    first_id_ += prompts.size();
    throw;
  }
  first_id_ += prompts.size();
  return run;
}

void step_driver::drive(const std::vector<std::vector<token_id>>& prompts, const run_options& options, driven_run& run) {
  admit(prompts, options);
  const auto all = static_cast<std::int64_t>(prompts.size());
  std::int32_t full_steps = 0;
  while (open_ > 0 || !flying_.empty()) {
    if (open_ > 0) plan_ahead(options.plans_in_flight);
    if (flying_.empty()) throw std::runtime_error("the scheduler plans nothing: the KV cache cannot hold the requests");
    absorb(run, await());
    const driven_step& last = run.steps.back();
    full_steps += last.decode_rows == all && last.prefill_tokens == 0 ? 1 : 0;
    if (open_ > 0 && options.stop_after && full_steps >= *options.stop_after) drop_requests(prompts.size());
  }
}

void step_driver::admit(const std::vector<std::vector<token_id>>& prompts, const run_options& options) {
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    sequence_request request;
    request.id = {first_id_ + i, 0};
    request.prompt = prompts[i];
    request.sampling.temperature = 0;
    request.stop.max_tokens = options.output_tokens;
    request.arrival_ns = now_ns();
    if (const auto refused = scheduler_.add(std::move(request), now_ns())) throw std::runtime_error(refused->message);
  }
  open_ = prompts.size();
}

void step_driver::plan_ahead(std::int32_t plans_in_flight) {
  while (static_cast<std::int32_t>(flying_.size()) < plans_in_flight) {
    const auto plan = scheduler_.schedule(now_ns());
    if (!plan) return;
    flight next;
    next.record.epoch = plan->epoch;
    next.record.step = plan->step;
    telemetry::count_items(*plan, next.record);
    next.step.decode_rows = next.record.decode_rows;
    next.step.prefill_tokens = next.record.prefill_tokens;
    for (const work_item& item : plan->items) {
      if (item.kind != work_kind::prefill) next.step.decode_positions.push_back(item.first_position);
    }
    next.step.submitted_ns = now_ns();
    flying_.push_back(std::move(next));
    const auto take = [this](step_outcome outcome) {
      const std::uint64_t at = now_ns();
      const std::lock_guard lock(guard_);
      arrivals_.push_back({std::move(outcome), at});
      arrived_.notify_one();
    };
    try {
      executor_.submit(*plan, take);
    } catch (const std::exception& e) { // as the device actor has it: it counts as a result
      take(step_failure{e.what()});
    }
  }
}

step_driver::arrival step_driver::await() {
  std::unique_lock lock(guard_);
  if (!arrived_.wait_for(lock, kPatience, [&] { return !arrivals_.empty(); })) {
    throw std::runtime_error("no result of a step within " + std::to_string(kPatience.count()) + " s");
  }
  arrival done = std::move(arrivals_.front());
  arrivals_.pop_front();
  return done;
}

void step_driver::absorb(driven_run& run, arrival done) {
  flight ended = std::move(flying_.front());
  flying_.pop_front();
  if (const auto* failed = std::get_if<step_failure>(&done.outcome)) throw std::runtime_error(failed->reason);
  const auto& result = std::get<step_result>(done.outcome);
  ended.record.result_ns = ended.step.delivered_ns = done.at_ns;
  ended.step.times = result.times;
  timeline_.step(ended.record, result.times);
  run.steps.push_back(std::move(ended.step));
  for (sequence_update& update : scheduler_.apply(result, done.at_ns)) {
    const auto index = static_cast<std::size_t>(update.id.request - first_id_);
    if (update.output_tokens > 0 && run.first_token_ns[index] == 0) run.first_token_ns[index] = done.at_ns;
    run.outputs[index].insert(run.outputs[index].end(), update.tokens.begin(), update.tokens.end());
    if (!update.finish) continue;
    if (*update.finish == finish_reason::failed) throw std::runtime_error(update.failure ? update.failure->message : "a sequence failed");
    run.finished_ns[index] = done.at_ns;
    --open_;
  }
}

void step_driver::drop_requests(std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) scheduler_.remove({first_id_ + i, 0});
  open_ = 0;
}

// Those that are out, with their results; the device begins anew with the next epoch.
void step_driver::drop_plans() {
  {
    std::unique_lock lock(guard_);
    arrived_.wait_for(lock, kPatience, [&] { return arrivals_.size() >= flying_.size(); });
    arrivals_.clear();
    flying_.clear();
  }
  scheduler_.device_lost(now_ns(), loss_cause::killed);
}

std::vector<decode_interval> decode_intervals(const driven_run& run, std::int64_t rows, std::size_t warmup) {
  std::vector<decode_interval> out;
  const auto full = [&](const driven_step& s) { return s.decode_rows == rows && s.prefill_tokens == 0; };
  for (std::size_t i = 1; i < run.steps.size(); ++i) {
    if (!full(run.steps[i - 1]) || !full(run.steps[i])) continue;
    const std::uint64_t ns = run.steps[i].delivered_ns - run.steps[i - 1].delivered_ns;
    out.push_back({static_cast<double>(ns) * 1e-6, &run.steps[i]});
  }
  out.erase(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(std::min(warmup, out.size())));
  return out;
}

std::vector<std::vector<token_id>> random_prompts(std::size_t count, std::int32_t length, std::int32_t vocab_size, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_int_distribution<token_id> token(0, vocab_size - 1);
  std::vector<std::vector<token_id>> prompts(count);
  for (auto& prompt : prompts) {
    prompt.resize(static_cast<std::size_t>(length));
    for (token_id& t : prompt) t = token(random);
  }
  return prompts;
}

} // namespace troupe::bench
