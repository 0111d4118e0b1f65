// troupe bench calibrate: step times of the CPU executor over rows, tokens and context, and what the serving side adds to them, as the
// table that `troupe simulate` reads.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "apps/bench/calibration.hpp"
#include "apps/bench_engine.hpp"
#include "apps/commands.hpp"
#include "apps/engine.hpp"
#include "apps/executor_factory.hpp"
#include "apps/model_source.hpp"
#include "apps/serving_probe.hpp"

namespace troupe::apps {

namespace {

using steady = std::chrono::steady_clock;

constexpr int kFewestRounds = 1;
constexpr int kLoneRequests = 4;           // a round
constexpr double kPatienceNs = 10e6;       // for one point in one round
constexpr std::int32_t kPromptTokens = 16; // of sequences whose decode steps are measured
constexpr std::int32_t kOutputTokens = 48;

struct options {
  engine_options engine;
  std::string output = "device-table.json";
  double budget_s = 60; // more or less
};

void time_points(bench::step_stopwatch& watch, std::vector<bench::timed_point>& points) {
  for (bench::timed_point& p : points) p.ns.push_back(watch.typical(p.shape, kPatienceNs));
}

// The device alone is timed right behind, so that both see the machine in the same mood.
void sample_serving(bench::step_stopwatch& watch, serving_probe& probe, const executor_info& info, bench::serving_samples& samples) {
  const std::int32_t room = info.max_model_len - 1;
  const std::int32_t lone = std::max(1, std::min(info.max_batched_tokens, room) / 2);
  for (int i = 0; i < kLoneRequests; ++i) samples.request_ns.push_back(probe.request_ns(lone));
  const std::int32_t prompt = std::min(kPromptTokens, std::max(1, room / 4)), outputs = std::min(kOutputTokens, std::max(1, room / 2));
  for (const std::int32_t rows : bench::serving_rows(info)) {
    const auto pace = probe.pace(rows, prompt, outputs);
    if (!pace) continue;
    const double alone = watch.typical({rows, static_cast<std::int32_t>(pace->context), 0, 0}, 5 * kPatienceNs);
    samples.step_ns[rows].push_back(pace->step_ns - alone);
  }
}

// Whole rounds, so that each point sees the machine at all times of the measurement.
simulation::device_table measure(const options& o, const actors::executor_factory& make_executor) {
  const auto begin = steady::now();
  const auto executor = make_executor({}, {});
  const executor_info info = executor->info();
  bench::calibration c(info);
  bench::step_stopwatch watch(*executor);
  serving_probe probe(o.engine, make_executor);
  probe.request_ns(1); // the first request of a server is not like the others
  for (int round = 0; round < kFewestRounds || std::chrono::duration<double>(steady::now() - begin).count() < o.budget_s; ++round) {
    time_points(watch, c.decode);
    time_points(watch, c.prefill);
    time_points(watch, c.mixed);
    sample_serving(watch, probe, info, c.serving);
  }
  return c.table();
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

void refuse_groups(const engine_options& o) {
  if (o.devices() == 1) return;
  throw std::invalid_argument("--tp " + std::to_string(o.tensor_parallel_size) + ", --pp " + std::to_string(o.pipeline_parallel_size) +
                              " and --dp " + std::to_string(o.data_parallel_size) + ": bench calibrate measures one device, not " +
                              std::to_string(o.devices()));
}

int calibrate(options o) {
  if (o.engine.device == "auto") o.engine.device = "cpu";
  if (o.engine.device != "cpu") throw std::invalid_argument("--device: bench calibrate measures the CPU device");
  if (o.engine.isolate_devices) throw std::invalid_argument("--isolate-devices: bench calibrate measures a device in the server's process");
  refuse_groups(o.engine);
  refuse_speculation(o.engine);
  const auto source = open_source(o.engine);
  auto table = measure(o, make_executor_factory(o.engine, source, nullptr, load_text_side(*source).tokens->vocab_size()));
  table.device = "cpu";
  table.model = served_names(o.engine).front();
  print("rows", table.decode);
  print("tokens", table.prefill);
  std::printf("shared by decode rows and a prefill in one step: %.3f ms\n", table.shared_ns / 1e6);
  std::printf("the serving side adds: %.3f ms to a request, %.3f ms to a step and %.3f ms for each row of it\n",
              table.serving.request_ns / 1e6, table.serving.step_ns / 1e6, table.serving.row_ns / 1e6);
  std::ofstream file(o.output, std::ios::binary);
  file << simulation::dump_device_table(table) << '\n';
  file.close();
  if (file.fail()) throw std::runtime_error(o.output + ": cannot be written");
  return 0;
}

} // namespace

void add_bench_calibrate(CLI::App& bench, int& exit_code) {
  auto o = std::make_shared<options>();
  CLI::App* command =
      bench.add_subcommand("calibrate", "Measure step times of the CPU device and of serving, for troupe simulate --device-table");
  add_engine_flags(*command, o->engine);
  command->add_option("--output,-o", o->output, "file for the table")->capture_default_str();
  command->add_option("--seconds", o->budget_s, "time to spend, roughly; at least one round over all points")
      ->check(CLI::Range(0.0, 1e5))
      ->capture_default_str();
  command->callback([o, &exit_code] { exit_code = calibrate(*o); });
}

} // namespace troupe::apps
