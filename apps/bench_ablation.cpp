// `troupe bench ablation`: the full system beside itself with one thing switched off, in one run.
#include <CLI/CLI.hpp>

#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apps/bench/ablation.hpp"
#include "apps/bench_engine.hpp"
#include "apps/commands.hpp"
#include "apps/executor_factory.hpp"
#include "apps/tracing.hpp"

namespace troupe::apps {
namespace {

struct ablation_command {
  engine_options engine;
  bench::ablation_options measure;
  std::string json_file;
  std::string trace_file;
};

struct wanted_variant {
  std::string name;
  gpu_switches switches;
  std::int32_t plans_in_flight = 2;
};

std::vector<wanted_variant> variants_for(const std::string& device) {
  std::vector<wanted_variant> out = {{"full", {}, 2}, {"one step ahead off", {}, 1}};
  if (device != "cuda") return out;
  const auto without = [](bool gpu_switches::*one) {
    gpu_switches s;
    s.*one = false;
    return s;
  };
  out.push_back({"unfused", without(&gpu_switches::fused), 2});
  out.push_back({"synchronous copies", without(&gpu_switches::asynchronous_copies), 2});
  out.push_back({"graphs off", without(&gpu_switches::graphs), 2});
  out.push_back({"overlapping launches off", without(&gpu_switches::overlapping_launches), 2});
  out.push_back({"all off", {false, false, false, false}, 1});
  gpu_switches invariant;
  invariant.batch_invariant = true;
  out.push_back({"batch-invariant", invariant, 2});
  return out;
}

// One executor for each set of switches, all alive at once, so that variants can take turns.
class variant_engines {
 public:
  variant_engines(const engine_options& base, std::shared_ptr<const checkpoint> source, telemetry::timeline& timeline)
      : base_(base), source_(std::move(source)), device_(device_kind(base_, *source_)), timeline_(timeline) {}

  // Throws load_error and device_error.
  bench::step_driver& driver(const gpu_switches& switches) {
    for (const auto& e : engines_) {
      if (e->switches == switches) return *e->driver;
    }
    auto made = std::make_unique<engine>();
    made->switches = switches;
    if (!factory_ || device_ == "cuda") { // a CPU's weights are shared
      engine_options options = base_;
      options.gpu = switches;
      factory_ = make_executor_factory(options, source_, nullptr, source_->config().vocab_size);
    }
    made->executor = factory_({}, {});
    made->driver = std::make_unique<bench::step_driver>(*made->executor, timeline_);
    engines_.push_back(std::move(made));
    return *engines_.back()->driver;
  }

 private:
  struct engine {
    gpu_switches switches;
    std::unique_ptr<step_executor> executor;
    std::unique_ptr<bench::step_driver> driver;
  };

  engine_options base_;
  std::shared_ptr<const checkpoint> source_;
  std::string device_;
  telemetry::timeline& timeline_;
  actors::executor_factory factory_;
  std::vector<std::unique_ptr<engine>> engines_;
};

void size_engine(ablation_command& o) {
  const bench::ablation_options& m = o.measure;
  const std::int64_t tokens = std::int64_t{m.prompt} + m.output + 2;
  o.engine.max_num_seqs = m.batch;
  const std::int32_t step_tokens = o.engine.max_num_batched_tokens_given ? o.engine.max_num_batched_tokens : 2048;
  o.engine.max_num_batched_tokens = std::max(step_tokens, m.batch);
  o.engine.max_num_seqs_given = o.engine.max_num_batched_tokens_given = true;
  if (!o.engine.max_model_len) o.engine.max_model_len = static_cast<std::int32_t>(tokens);
  const std::int64_t blocks = m.batch * ((tokens + o.engine.block_size - 1) / o.engine.block_size) + 1;
  if (!o.engine.num_kv_blocks) o.engine.num_kv_blocks = static_cast<std::int32_t>(blocks);
}

value workload_json(const ablation_command& o) {
  value_object out;
  out.set("batch", std::int64_t{o.measure.batch});
  out.set("prompt_tokens", std::int64_t{o.measure.prompt});
  out.set("output_tokens", std::int64_t{o.measure.output});
  out.set("rounds", std::int64_t{o.measure.rounds});
  out.set("max_num_batched_tokens", std::int64_t{o.engine.max_num_batched_tokens});
  return out;
}

int run_ablation(ablation_command o) {
  refuse_speculation(o.engine);
  size_engine(o);
  const auto source = open_source(o.engine);
  const std::string device = device_kind(o.engine, *source);
  const auto opened = open_trace(o.trace_file);
  telemetry::timeline silent;
  std::vector<bench::variant_figures> figures;
  value_array left_out;
  std::string notes;
  {
    variant_engines engines(o.engine, source, opened ? *opened : silent);
    std::vector<bench::ablation_variant> variants;
    for (const wanted_variant& w : variants_for(device)) {
      try {
        variants.push_back({w.name, &engines.driver(w.switches), w.plans_in_flight});
      } catch (const std::exception& e) {
        if (variants.empty()) throw; // there is nothing to compare with
        notes += w.name + ": not measured: " + e.what() + "\n";
        left_out.emplace_back(w.name + ": " + e.what());
      }
    }
    figures = bench::run_ablation(variants, o.measure);
    for (const bench::variant_figures& f : figures) {
      if (!f.failure.empty()) left_out.emplace_back(f.name + ": " + f.failure);
    }
  }
  if (device == "cpu") {
    notes +=
        "On the CPU device there is nothing else to switch: fusion, graphs, overlapping launches and asynchronous copies are a GPU's.\n";
  }
  const bench::rate_ceilings ceilings = measure_ceilings(o.engine, *source);
  value_object result = begin_result("ablation", o.engine, *source, ceilings);
  result.set("workload", workload_json(o));
  result.set("variants", bench::ablation_json(figures));
  const bool complete = left_out.empty();
  result.set("left_out", std::move(left_out));
  if (opened) notes += opened->describe() + "\n";
  const int code = report_result(o.json_file, bench::ablation_table(figures) + notes, std::move(result));
  return complete ? code : 1;
}

} // namespace

void add_bench_ablation(CLI::App& bench, int& exit_code) {
  auto o = std::make_shared<ablation_command>();
  auto* app = bench.add_subcommand("ablation", "Measure what each of the device's means is worth: the same load with one of them off");
  add_engine_flags(*app, o->engine);
  app->add_option("--batch-size", o->measure.batch, "Requests at once")->check(CLI::Range(1, 65536))->capture_default_str();
  app->add_option("--input-len", o->measure.prompt, "Prompt tokens of each")->check(CLI::Range(1, 1 << 24))->capture_default_str();
  app->add_option("--output-len", o->measure.output, "Tokens that each generates")->check(CLI::Range(2, 1 << 24))->capture_default_str();
  app->add_option("--rounds", o->measure.rounds, "In each of which every variant runs once")
      ->check(CLI::Range(1, 10'000))
      ->capture_default_str();
  app->add_option("--seed", o->measure.seed, "Of the prompts")->capture_default_str();
  add_json_flag(*app, o->json_file);
  add_trace_flag(*app, o->trace_file);
  app->callback([o, &exit_code] { exit_code = run_ablation(*o); });
}

} // namespace troupe::apps
