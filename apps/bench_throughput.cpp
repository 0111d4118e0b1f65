// `troupe bench throughput`: the whole serving side in this process under a load of token ids, without HTTP.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "apps/bench/generation_load.hpp"
#include "apps/bench/report.hpp"
#include "apps/bench/text.hpp"
#include "apps/bench_engine.hpp"
#include "apps/commands.hpp"
#include "apps/engine.hpp"
#include "apps/load_flags.hpp"
#include "apps/tracing.hpp"
#include "models/gpu_executor.hpp"

namespace troupe::apps {
namespace {

struct throughput_command {
  engine_options engine;
  bench::generation_options load;
  std::string rate = "inf", input = "128", output = "128";
  std::string json_file;
  std::string trace_file;
};

value workload_json(const throughput_command& o, bool on_gpu) {
  const bench::generation_options& load = o.load;
  const engine_options& e = o.engine;
  const gpu_executor_options defaults;
  value_object out;
  out.set("requests", static_cast<std::int64_t>(load.count));
  out.set("burst", static_cast<std::int64_t>(load.burst));
  out.set("request_rate", std::isinf(load.rate) ? value("inf") : value(load.rate));
  out.set("burstiness", load.burstiness);
  out.set("input_len", o.input);
  out.set("output_len", o.output);
  out.set("max_num_seqs", std::int64_t{on_gpu && !e.max_num_seqs_given ? defaults.max_num_seqs : e.max_num_seqs});
  out.set("max_num_batched_tokens",
          std::int64_t{on_gpu && !e.max_num_batched_tokens_given ? defaults.max_batched_tokens : e.max_num_batched_tokens});
  out.set("seed", std::to_string(load.seed));
  return out;
}

// The load's figures together with those that only a program which owns its engine can tell.
struct throughput_figures {
  bench::totals totals;
  bench::steady_window steady;
  double idle_share = 0;
  std::optional<double> start_to_first_token;

  std::optional<double> itl_p99_over_median() const {
    return totals.itl.median > 0 ? std::optional(totals.itl.p99 / totals.itl.median) : std::nullopt;
  }
};

std::string table_of(const throughput_figures& f) {
  std::string out = bench::text_report(f.totals, {});
  out += bench::format("%-28s %10.2f\n", "ITL p99 / median", f.itl_p99_over_median().value_or(0));
  out += bench::format("%-28s %10.2f  (%.2f s to %.2f s, %zu gaps)\n", "Requests at once, mean", f.steady.concurrency, f.steady.from,
                       f.steady.to, f.steady.gaps);
  out += bench::format("%-28s %9.2f%%\n", "Device idle between steps", f.idle_share * 100);
  if (f.start_to_first_token) out += bench::format("%-28s %10.2f\n", "Start to first token (s)", *f.start_to_first_token);
  return out;
}

void add_figures(value_object& result, const throughput_figures& f) {
  const value report = bench::json_report(f.totals, {});
  for (const auto& [key, item] : report.as_object().entries()) result.set(key, item);
  value_object steady;
  steady.set("from_seconds", f.steady.from);
  steady.set("to_seconds", f.steady.to);
  steady.set("gaps", static_cast<std::int64_t>(f.steady.gaps));
  steady.set("concurrency", f.steady.concurrency);
  result.set("steady", std::move(steady));
  const auto ratio = f.itl_p99_over_median();
  result.set("itl_p99_over_median", ratio ? value(*ratio) : value());
  result.set("idle_share", f.idle_share);
  result.set("start_to_first_token_seconds", f.start_to_first_token ? value(*f.start_to_first_token) : value());
}

throughput_figures measure(const throughput_command& o, std::shared_ptr<telemetry::timeline> timeline) {
  auto metrics = make_metrics(o.engine);
  auto engine = start_engine(o.engine, metrics, timeline);
  throughput_figures f;
  bench::generation_options load = o.load;
  load.vocab_size = engine->model().vocab_size;
  const std::vector<bench::planned_generation> first(1, {0, bench::plan_generations(load).front().prompt, 1});
  const auto warm = bench::run_generations(*engine, first, 0, 1);
  if (!warm.records.front().failure.empty()) throw std::runtime_error("the first request failed: " + warm.records.front().failure);
  f.start_to_first_token = bench::seconds_since_process_start();
  const auto before = timeline->idle();
  const auto ran = bench::run_generations(*engine, bench::plan_generations(load), load.burst, 2);
  const auto after = timeline->idle();
  engine->stop();
  const telemetry::idle_summary between{after.steps - before.steps, after.busy_ns - before.busy_ns, after.idle_ns - before.idle_ns};
  f.totals = bench::total(ran.records, {});
  f.steady = ran.steady;
  f.idle_share = between.share();
  return f;
}

int run_throughput(throughput_command o) {
  o.load.rate = parse_rate(o.rate);
  o.load.input = parse_lengths("--input-len", o.input);
  o.load.output = parse_lengths("--output-len", o.output);
  o.engine.max_queue = std::max(o.engine.max_queue, static_cast<std::int32_t>(o.load.count) + 1);
  const auto source = open_source(o.engine);
  auto timeline = open_trace(o.trace_file, shape_of(o.engine));
  const bool traced = timeline != nullptr;
  if (!traced) timeline = std::make_shared<telemetry::timeline>(shape_of(o.engine));
  const throughput_figures f = measure(o, timeline);
  const bench::rate_ceilings ceilings = measure_ceilings(o.engine, *source);
  value_object result = begin_result("throughput", o.engine, *source, ceilings);
  result.set("workload", workload_json(o, device_kind(o.engine, *source) == "cuda"));
  add_figures(result, f);
  std::string table = table_of(f);
  if (traced) table += timeline->describe() + "\n";
  const int code = report_result(o.json_file, table, std::move(result));
  if (f.totals.failed == 0) return code;
  for (const auto& [kind, count] : f.totals.failures) std::fprintf(stderr, "troupe bench throughput: %zu x %s\n", count, kind.c_str());
  return 1;
}

} // namespace

void add_bench_throughput(CLI::App& bench, int& exit_code) {
  auto o = std::make_shared<throughput_command>();
  auto* app = bench.add_subcommand("throughput", "Load the whole serving side in this process with random token ids, without HTTP");
  add_engine_flags(*app, o->engine);
  app->add_option("--num-prompts", o->load.count, "Requests")->check(CLI::Range(1, 10'000'000))->capture_default_str();
  app->add_option("--burst", o->load.burst, "Of them, so many are under way from the start, as in a load that has been running for long")
      ->check(CLI::Range(0, 10'000'000))
      ->capture_default_str();
  app->add_option("--request-rate", o->rate, "Of the others, requests a second, or 'inf' to send all at once")->capture_default_str();
  app->add_option("--burstiness", o->load.burstiness, "Shape of the gaps: 1 Poisson, below 1 burstier, above 1 more even")
      ->check(CLI::Range(0.01, 1000.0))
      ->capture_default_str();
  app->add_option("--input-len", o->input, "Prompt tokens: N, or LOW:HIGH drawn evenly")->capture_default_str();
  app->add_option("--output-len", o->output, "Tokens to generate: N, or LOW:HIGH drawn evenly")->capture_default_str();
  app->add_option("--seed", o->load.seed, "Of prompts, lengths and arrivals")->capture_default_str();
  add_json_flag(*app, o->json_file);
  add_trace_flag(*app, o->trace_file);
  app->callback([o, &exit_code] { exit_code = run_throughput(*o); });
}

} // namespace troupe::apps
