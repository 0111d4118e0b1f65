// troupe bench calibrate: step times of the CPU executor over rows, tokens and context, as the table that `troupe simulate` reads.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "apps/bench_engine.hpp"
#include "apps/commands.hpp"
#include "apps/engine.hpp"
#include "simulation/device_table.hpp"

namespace troupe::apps {

namespace {

using steady = std::chrono::steady_clock;

struct options {
  engine_options engine;
  std::string output = "device-table.json";
  double budget_s = 60; // more or less
};

std::vector<double> doubling(std::int32_t last) {
  std::vector<double> axis;
  for (std::int32_t x = 1; x < last; x *= 2) axis.push_back(x);
  axis.push_back(last);
  return axis;
}

// Plays the scheduler's part with one kind of step at a time. A slot may begin at any position, so its context need not be computed.
class stopwatch {
 public:
  stopwatch(step_executor& executor, double budget_s, std::size_t points)
      : executor_(executor), info_(executor.info()), patience_s_(budget_s / static_cast<double>(points)) {
    write_all_blocks();
  }

  // The fastest of some repetitions: whatever else the machine does can only add.
  double decode(std::int32_t rows, std::int32_t context) { return best(rows, context, 0, 0); }
  double prefill(std::int32_t tokens, std::int32_t context) { return best(0, 0, tokens, context); }
  double mixed(std::int32_t rows, std::int32_t context, std::int32_t tokens) { return best(rows, context, tokens, 0); }

 private:
  double best(std::int32_t rows, std::int32_t context, std::int32_t tokens, std::int32_t prefix) {
    const auto begin = steady::now();
    double least = once(rows, context, tokens, prefix);
    for (int i = 1; i < 3 || (i < 100 && seconds(steady::now() - begin) < patience_s_); ++i) {
      least = std::min(least, once(rows, context, tokens, prefix));
    }
    return least;
  }

  // Opens the slots with a short prefill, then times the one step.
  double once(std::int32_t rows, std::int32_t context, std::int32_t tokens, std::int32_t prefix) {
    step_plan open;
    open.closed = std::exchange(open_, {});
    std::int32_t next_block = 0;
    for (slot_id slot = 0; slot < rows; ++slot) {
      open_slot(open, slot, context + 1, next_block);
      add_prefill(open, slot, context - 1, 1, true);
    }
    if (tokens > 0) open_slot(open, rows, prefix + tokens, next_block);
    step_plan timed;
    if (tokens > 0 && rows == 0) { // a plan has items: the slot's opening travels with the step itself
      timed = std::exchange(open, {});
    } else {
      submit(open);
    }
    for (slot_id slot = 0; slot < rows; ++slot) timed.items.push_back({slot, work_kind::decode, context, 1, true, std::nullopt});
    if (tokens > 0) add_prefill(timed, rows, prefix, tokens, true);
    const auto begin = steady::now();
    submit(timed);
    return seconds(steady::now() - begin) * 1e9;
  }

  // Memory that was never written is one page of zeros, and faster to read than any KV.
  void write_all_blocks() {
    step_plan fill;
    std::int32_t next_block = 0;
    const std::int32_t length = std::min({info_.block_size, info_.max_batched_tokens, info_.max_model_len});
    open_slot(fill, 0, length, next_block);
    add_prefill(fill, 0, 0, length, true);
    submit(fill);
    step_plan spread;
    spread.closed = std::exchange(open_, {});
    for (block_id to = 1; to < info_.num_blocks; ++to) spread.copies.push_back({0, to});
    next_block = 0;
    open_slot(spread, 0, 1, next_block);
    add_prefill(spread, 0, 0, 1, true);
    submit(spread);
  }

  void open_slot(step_plan& plan, slot_id slot, std::int32_t length, std::int32_t& next_block) {
    sampling_params greedy;
    greedy.temperature = 0;
    plan.opened.push_back({slot, length, greedy});
    open_.push_back(slot);
    block_grant grant{slot, 0, {}};
    for (std::int32_t n = (length + info_.block_size - 1) / info_.block_size; n > 0; --n) grant.blocks.push_back(next_block++);
    plan.grants.push_back(std::move(grant));
  }

  void add_prefill(step_plan& plan, slot_id slot, std::int32_t first, std::int32_t count, bool sample) {
    plan.items.push_back({slot, work_kind::prefill, first, count, sample, std::nullopt});
    for (std::int32_t i = 0; i < count; ++i) plan.tokens.push_back((first + i * 7919 + 11) % info_.vocab_size);
  }

  void submit(step_plan& plan) {
    plan.epoch = 1;
    plan.step = ++step_;
    std::string failure;
    executor_.submit(plan, [&](step_outcome outcome) {
      if (const auto* failed = std::get_if<step_failure>(&outcome)) failure = failed->reason;
    });
    if (!failure.empty()) throw std::runtime_error(failure);
  }

  static double seconds(steady::duration d) { return std::chrono::duration<double>(d).count(); }

  step_executor& executor_;
  executor_info info_;
  double patience_s_;
  std::vector<slot_id> open_;
  step_number step_ = 0;
};

simulation::device_table measure(step_executor& executor, double budget_s) {
  const executor_info info = executor.info();
  // Contexts that all slots can have at once.
  const std::int32_t blocks_each = info.num_blocks / (info.max_num_seqs + 1);
  const std::int32_t longest = std::min(info.max_model_len - 1, blocks_each * info.block_size - 1) - info.max_batched_tokens;
  if (longest < 1) throw std::runtime_error("the KV cache is too small to measure with: fewer sequences or batched tokens, or more memory");
  simulation::device_table t;
  t.device = "cpu";
  t.limits = info;
  t.decode.counts = doubling(info.max_num_seqs);
  t.prefill.counts = doubling(info.max_batched_tokens);
  t.decode.contexts = t.prefill.contexts = {1, std::max(2.0, longest / 4.0), std::max(3.0, static_cast<double>(longest))};
  for (auto* axis : {&t.decode.contexts, &t.prefill.contexts}) {
    for (double& c : *axis) c = static_cast<std::int32_t>(c);
  }
  const std::size_t points = t.decode.contexts.size() * (t.decode.counts.size() + t.prefill.counts.size()) + 1;
  stopwatch watch(executor, budget_s, points);
  const auto whole = [](double x) { return static_cast<std::int32_t>(x); };
  for (const double rows : t.decode.counts) {
    for (const double c : t.decode.contexts) t.decode.ns.push_back(watch.decode(whole(rows), whole(c)));
  }
  for (const double n : t.prefill.counts) {
    for (const double c : t.prefill.contexts) t.prefill.ns.push_back(watch.prefill(whole(n), whole(c)));
  }
  if (info.max_num_seqs == 1) return t; // a decode row and a prefill never meet
  const std::int32_t rows = std::max(1, info.max_num_seqs / 4), tokens = std::max(1, (info.max_batched_tokens - rows) / 2);
  const double apart = t.decode.at(rows, 1) + t.prefill.at(tokens, 0);
  t.shared_ns = std::max(0.0, apart - watch.mixed(rows, 1, tokens));
  return t;
}

void print(const char* what, const simulation::cost_grid& g) {
  std::printf("%10s", what);
  for (const double c : g.contexts) std::printf("  context %5.0f", c);
  std::printf("\n");
  for (std::size_t r = 0; r < g.counts.size(); ++r) {
    std::printf("%10.0f", g.counts[r]);
    for (std::size_t c = 0; c < g.contexts.size(); ++c) std::printf("  %10.3f ms", g.ns[r * g.contexts.size() + c] / 1e6);
    std::printf("\n");
  }
}

int calibrate(options o) {
  if (o.engine.device == "auto") o.engine.device = "cpu";
  if (o.engine.device != "cpu") throw std::invalid_argument("--device: bench calibrate measures the CPU device");
  refuse_speculation(o.engine);
  const auto source = open_source(o.engine);
  const auto executor = make_executor_factory(o.engine, source, nullptr, load_text_side(*source).tokens->vocab_size())({}, {});
  auto table = measure(*executor, o.budget_s);
  table.model = served_names(o.engine).front();
  print("rows", table.decode);
  print("tokens", table.prefill);
  std::printf("shared by decode rows and a prefill in one step: %.3f ms\n", table.shared_ns / 1e6);
  std::ofstream file(o.output, std::ios::binary);
  file << simulation::dump_device_table(table) << '\n';
  file.close();
  if (file.fail()) throw std::runtime_error(o.output + ": cannot be written");
  return 0;
}

} // namespace

void add_bench_calibrate(CLI::App& bench, int& exit_code) {
  auto o = std::make_shared<options>();
  CLI::App* command = bench.add_subcommand("calibrate", "Measure step times of the CPU device, for troupe simulate --device-table");
  add_engine_flags(*command, o->engine);
  command->add_option("--output,-o", o->output, "file for the table")->capture_default_str();
  command->add_option("--seconds", o->budget_s, "time to spend, roughly; each point is measured at least three times")
      ->check(CLI::Range(0.0, 1e5))
      ->capture_default_str();
  command->callback([o, &exit_code] { exit_code = calibrate(*o); });
}

} // namespace troupe::apps
