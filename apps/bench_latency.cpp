// `troupe bench latency`: decode step time and time to the first token, on the executor itself.
#include <CLI/CLI.hpp>

#include <chrono>
#include <cstdio>
#include <exception>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "apps/bench/latency.hpp"
#include "apps/bench_engine.hpp"
#include "apps/bench_ranks.hpp"
#include "apps/commands.hpp"
#include "apps/tracing.hpp"

namespace troupe::apps {
namespace {

struct latency_command {
  engine_options engine;
  bench::latency_options measure;
  std::string json_file;
  std::string trace_file;
  bench_place place;
};

// The executor gets exactly what the measurement needs.
void size_engine(latency_command& o) {
  const auto wanted = o.engine.max_num_batched_tokens_given ? std::optional(o.engine.max_num_batched_tokens) : std::nullopt;
  const bench::latency_needs needs = bench::needs_of(o.measure, o.engine.block_size, wanted);
  o.engine.max_num_seqs = needs.max_num_seqs;
  o.engine.max_num_batched_tokens = needs.max_batched_tokens;
  o.engine.max_num_seqs_given = o.engine.max_num_batched_tokens_given = true;
  if (!o.engine.max_model_len) o.engine.max_model_len = needs.max_model_len;
  if (!o.engine.num_kv_blocks) o.engine.num_kv_blocks = needs.num_blocks;
}

int run_latency(latency_command o) {
  refuse_speculation(o.engine);
  size_engine(o);
  const auto source = open_source(o.engine);
  const bench::model_cost cost = cost_of(o.engine, *source);
  const bool reports = o.place.rank == 0;
  const auto opened = open_trace(reports ? o.trace_file : std::string());
  telemetry::timeline silent;
  telemetry::timeline& timeline = opened ? *opened : silent;
  bench::latency_figures figures;
  std::optional<double> start_to_first_token;
  std::string failure; // what was measured before it counts all the same
  bench_ranks others;
  try {
    const auto executor = others.make_executor(o.engine, o.place, source);
    bench::step_driver driver(*executor, timeline);
    driver.run(bench::random_prompts(1, 16, driver.info().vocab_size, o.measure.seed), {1, 1, std::nullopt});
    start_to_first_token = bench::seconds_since_process_start();
    for (const std::int32_t batch : o.measure.batch_sizes) {
      figures.decode.push_back(bench::measure_decode(driver, timeline, o.measure, batch, cost));
    }
    for (const std::int32_t prompt : o.measure.prompt_lengths) {
      figures.prefill.push_back(bench::measure_prefill(driver, o.measure, prompt, cost));
    }
  } catch (const std::exception& e) {
    if (!start_to_first_token) throw; // nothing was measured
    failure = e.what();
  }
  if (!reports) {
    leave_report(o.place, bench::splits_json(o.place.rank, figures));
    return failure.empty() ? 0 : 1;
  }
  const value_array ranks = others.reports(std::chrono::seconds(failure.empty() ? 10 : 0));
  // The executor's memory is free again, for the ceilings.
  bench::rate_ceilings ceilings = measure_ceilings(o.engine, *source);
  ceilings.read_bytes_per_second *= others.gpus(); // of all GPUs together
  ceilings.matmul_flops_per_second *= others.gpus();
  value_object result = begin_result("latency", o.engine, *source, ceilings);
  result.set("start_to_first_token_seconds", start_to_first_token ? value(*start_to_first_token) : value());
  result.set("plans_in_flight", std::int64_t{o.measure.plans_in_flight});
  result.set("decode", bench::decode_json(figures.decode, ceilings));
  result.set("prefill", bench::prefill_json(figures.prefill, ceilings));
  if (!ranks.empty()) result.set("other_ranks", ranks);
  if (!failure.empty()) result.set("failure", failure);
  std::string table = bench::latency_table(figures, ceilings);
  if (start_to_first_token) table += "start to first token: " + std::to_string(*start_to_first_token) + " s\n";
  if (!failure.empty()) table += "FAILED, and measured no further: " + failure + "\n";
  if (opened) table += opened->describe() + "\n";
  return report_result(o.json_file, table, std::move(result));
}

} // namespace

void add_bench_latency(CLI::App& bench, int& exit_code) {
  auto o = std::make_shared<latency_command>();
  o->measure.batch_sizes = {1, 8};
  o->measure.prompt_lengths = {512};
  auto* app = bench.add_subcommand("latency", "Measure decode steps and prefills on the device alone, against the machine's ceilings");
  add_engine_flags(*app, o->engine);
  app->add_option("--batch-size", o->measure.batch_sizes, "Rows of the decode steps, as in 1,8,32; 0 leaves them out")
      ->delimiter(',')
      ->check(CLI::Range(0, 65536))
      ->capture_default_str();
  app->add_option("--context", o->measure.context, "Tokens that a decode row sees")->check(CLI::Range(1, 1 << 24))->capture_default_str();
  app->add_option("--steps", o->measure.steps, "Decode steps to measure")->check(CLI::Range(1, 1'000'000))->capture_default_str();
  app->add_option("--warmup-steps", o->measure.warmup, "Decode steps before them")->check(CLI::Range(0, 1'000'000))->capture_default_str();
  app->add_option("--prompt-len", o->measure.prompt_lengths, "Prompts whose first token is timed, as in 512,8192; 0 leaves them out")
      ->delimiter(',')
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  app->add_option("--repeats", o->measure.repeats, "Of each prompt")->check(CLI::Range(1, 100'000))->capture_default_str();
  app->add_option("--plans-in-flight", o->measure.plans_in_flight, "2: one step ahead; 1: each step waits for the one before")
      ->check(CLI::Range(1, 8))
      ->capture_default_str();
  app->add_option("--seed", o->measure.seed, "Of the prompts")->capture_default_str();
  add_json_flag(*app, o->json_file);
  add_trace_flag(*app, o->trace_file);
  add_place_flags(*app, o->place);
  app->callback([o, &exit_code] {
    std::erase(o->measure.batch_sizes, 0);
    std::erase(o->measure.prompt_lengths, 0);
    exit_code = run_latency(*o);
  });
}

} // namespace troupe::apps
