// troupe simulate: what a fleet of so many nodes carries, on the scheduler's own rules and a table of step costs.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "apps/commands.hpp"
#include "core/json.hpp"
#include "simulation/gpu_rates.hpp"
#include "simulation/h200.hpp"
#include "simulation/report.hpp"

namespace troupe::apps {

namespace {

using namespace simulation;

struct options {
  std::string table_file, ceilings_file, model = "llama-3.1-8b", workload = "sharegpt", trace_file, route = "round-robin";
  std::string input = "128", output = "128", json_file, svg_file;
  std::vector<std::string> steps; // what each costs is all that is asked
  std::vector<std::int32_t> nodes = {1, 2, 4, 8, 16, 32, 64, 128};
  layout parallel;
  std::int32_t gpus_per_node = 8, max_num_seqs = 256, max_batched_tokens = 2048;
  std::optional<std::int32_t> replica_seqs;
  std::int32_t prefixes = 0, prefix_tokens = 0;
  double rate = 4, seconds = 60, ttft_ms = 1000, tpot_ms = 50, overhead_ms = 0, price = 0;
  std::optional<double> total_rate;
  double burstiness = 1;
  fleet_config fleet;
};

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file.is_open() || file.bad()) throw std::runtime_error(path + ": cannot be read");
  return text;
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (file.fail()) throw std::runtime_error(path + ": cannot be written");
}

device_table make_table(const options& o) {
  if (!o.table_file.empty()) {
    auto table = parse_device_table(read_file(o.table_file));
    if (!table) throw std::runtime_error(o.table_file + ": " + table.failure().message);
    if (o.replica_seqs) table->limits.max_num_seqs = *o.replica_seqs;
    if (table->limits.max_batched_tokens < table->limits.max_num_seqs)
      throw std::runtime_error("max_num_seqs exceeds the table's max_batched_tokens");
    return *table;
  }
  layout parallel = o.parallel;
  parallel.across_nodes = parallel.gpus() > o.gpus_per_node;
  const auto rates = o.ceilings_file.empty() ? gpu_rates{} : parse_gpu_rates(read_file(o.ceilings_file));
  if (!rates) throw std::runtime_error(o.ceilings_file + ": " + rates.failure().message);
  auto table = h200_table(*find_model_shape(o.model), parallel, o.replica_seqs.value_or(o.max_num_seqs), o.max_batched_tokens, *rates);
  if (!table) throw std::runtime_error("the weights of " + o.model + " do not fit " + std::to_string(parallel.gpus()) + " x 141 GB");
  return *table;
}

workload make_workload(const options& o) {
  workload w;
  if (o.workload == "random") {
    w.prompt = *parse_length(o.input);
    w.output = *parse_length(o.output);
  } else {
    w = *find_workload(o.workload);
  }
  w.burstiness = o.burstiness;
  w.prefixes = static_cast<std::uint32_t>(o.prefixes);
  w.prefix_tokens = o.prefixes > 0 ? o.prefix_tokens : 0;
  return w;
}

std::vector<traffic> read_trace(const std::string& path) {
  auto trace = parse_trace(read_file(path), path.ends_with(".jsonl") || path.ends_with(".json"));
  if (!trace) throw std::runtime_error(path + ": " + trace.failure().message);
  return *trace;
}

std::string title_of(const options& o, const device_table& table) {
  std::string title = table.model + " on " + table.device;
  if (o.table_file.empty()) {
    title += ", tp " + std::to_string(o.parallel.tensor_parallel) + ", pp " + std::to_string(o.parallel.pipeline_parallel);
  }
  const std::string what = o.trace_file.empty() ? o.workload : "trace " + o.trace_file;
  char load[64] = "";
  if (o.trace_file.empty() && o.total_rate) std::snprintf(load, sizeof load, ", %g requests/s in all", *o.total_rate);
  if (o.trace_file.empty() && !o.total_rate) std::snprintf(load, sizeof load, ", %g requests/s per GPU", o.rate);
  return title + "; " + what + load + "; " + o.route;
}

// "decode:8:1024": rows and the context of each; "prefill:512:0": tokens, and the position of the first.
std::optional<step_shape> parse_step(const std::string& text) {
  double count = 0, context = 0;
  char end = 0;
  if (std::sscanf(text.c_str(), "decode:%lf:%lf%c", &count, &context, &end) == 2 && count >= 1 && context >= 0)
    return {{count, context, 0, 0}};
  if (std::sscanf(text.c_str(), "prefill:%lf:%lf%c", &count, &context, &end) == 2 && count >= 1 && context >= 0)
    return {{0, 0, count, context}};
  return std::nullopt;
}

std::string check_step(const std::string& text) {
  return parse_step(text) ? "" : "decode:ROWS:CONTEXT or prefill:TOKENS:CONTEXT is wanted";
}

int print_steps(const options& o) {
  value_object steps, root;
  std::string table = title_of(o, o.fleet.table) + "\n";
  for (const std::string& text : o.steps) {
    const double ms = o.fleet.table.step_ns(*parse_step(text)) / 1e6;
    steps.set(text, ms);
    char line[128];
    std::snprintf(line, sizeof line, "%-24.40s %10.3f ms\n", text.c_str(), ms);
    table += line;
  }
  root.set("steps_ms", std::move(steps));
  if (o.json_file != "-") std::fputs(table.c_str(), stdout);
  if (o.json_file == "-") std::printf("%s\n", json::dump(root).c_str());
  if (!o.json_file.empty() && o.json_file != "-") write_file(o.json_file, json::dump(root) + "\n");
  return 0;
}

int simulate(options& o) {
  o.fleet.table = make_table(o);
  if (!o.steps.empty()) return print_steps(o);
  o.fleet.gpus_per_node = o.gpus_per_node;
  o.fleet.gpus_per_replica = o.table_file.empty() ? o.parallel.gpus() : 1;
  o.fleet.lanes_per_replica = o.table_file.empty() ? o.parallel.pipeline_parallel : 1;
  o.fleet.wanted = {o.ttft_ms * 1e6, o.tpot_ms * 1e6};
  o.fleet.overhead_ns = o.overhead_ms * 1e6;
  o.fleet.route = o.route == "round-robin"    ? routing::round_robin
                  : o.route == "least-loaded" ? routing::least_loaded
                                              : routing::prefix_aware;
  const auto trace = o.trace_file.empty() ? std::vector<traffic>{} : read_trace(o.trace_file);
  const workload what = make_workload(o);
  sweep s{title_of(o, o.fleet.table), o.fleet.wanted, o.price, {}};
  for (const std::int32_t nodes : o.nodes) {
    o.fleet.nodes = nodes;
    if (o.fleet.lanes() < 1) {
      std::fprintf(stderr, "troupe simulate: %d nodes are too few for one replica of %d GPUs\n", nodes, o.fleet.gpus_per_replica);
      continue;
    }
    const double rate = o.total_rate.value_or(o.rate * static_cast<double>(o.fleet.gpus()));
    s.points.push_back(o.trace_file.empty() ? simulate_fleet(o.fleet, what, rate, o.seconds) : simulate_fleet(o.fleet, trace));
  }
  if (s.points.empty()) return 1;
  if (o.json_file != "-") std::fputs(text_report(s).c_str(), stdout);
  if (o.json_file == "-") std::printf("%s\n", json::dump(json_report(s)).c_str());
  if (!o.json_file.empty() && o.json_file != "-") write_file(o.json_file, json::dump(json_report(s)) + "\n");
  if (!o.svg_file.empty()) write_file(o.svg_file, svg_report(s));
  return 0;
}

std::string check_length(const std::string& text) {
  return parse_length(text) ? "" : "a length such as 128, or a range such as 64:256, is wanted";
}

void add_fleet_flags(CLI::App& c, options& o) {
  c.add_option("--nodes", o.nodes, "node counts, one row each")->delimiter(',')->check(CLI::Range(1, 65536))->capture_default_str();
  c.add_option("--gpus-per-node", o.gpus_per_node, "devices of a node")->check(CLI::Range(1, 1024))->capture_default_str();
  c.add_option("--model", o.model, "shape of the model, for the built-in H200 table")
      ->check(CLI::IsMember(model_shape_names()))
      ->capture_default_str();
  c.add_option("--device-table", o.table_file, "measured costs (troupe bench calibrate) instead of the built-in table")
      ->check(CLI::ExistingFile);
  c.add_option("--ceilings", o.ceilings_file, "what a GPU here can do (troupe bench ceilings --json) instead of the built-in rates")
      ->check(CLI::ExistingFile)
      ->excludes("--device-table");
  c.add_option("--step", o.steps, "only say what such steps take, as in decode:8:1024,prefill:512:0")->delimiter(',')->check(check_step);
  c.add_option("--tensor-parallel-size,--tp", o.parallel.tensor_parallel, "GPUs that share each layer")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  c.add_option("--pipeline-parallel-size,--pp", o.parallel.pipeline_parallel, "stages of layers")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  c.add_option("--max-num-seqs", o.replica_seqs, "sequences that run at once in a replica (default: 256, or the table's)")
      ->check(CLI::Range(1, 65536));
  c.add_option("--max-num-batched-tokens", o.max_batched_tokens, "tokens of one step, with the built-in table")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  c.add_option("--max-queue", o.fleet.max_waiting, "requests that may wait in a replica")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  c.add_option("--router", o.route, "how requests find a replica")
      ->check(CLI::IsMember({"round-robin", "least-loaded", "prefix-aware"}))
      ->capture_default_str();
  c.add_option("--overhead-ms", o.overhead_ms, "per request, before its first step: HTTP, tokenizer, router")
      ->check(CLI::Range(0.0, 1e5))
      ->capture_default_str();
  c.add_option("--price", o.price, "of a GPU hour; adds the cost per million tokens")->check(CLI::Range(0.0, 1e6));
  c.add_flag("--exact", o.fleet.exact, "the real scheduler step by step: slower, and without prefix caches");
  c.add_option("--threads", o.fleet.threads, "used with the round-robin router")->check(CLI::Range(1, 1024))->capture_default_str();
}

void add_traffic_flags(CLI::App& c, options& o) {
  c.add_option("--workload", o.workload, "lengths of requests")
      ->check(CLI::IsMember({"sharegpt", "azure-conv", "azure-code", "random"}))
      ->capture_default_str();
  c.add_option("--input-len", o.input, "with random: prompt tokens, N or LOW:HIGH")->check(check_length)->capture_default_str();
  c.add_option("--output-len", o.output, "with random: output tokens, N or LOW:HIGH")->check(check_length)->capture_default_str();
  c.add_option("--trace", o.trace_file, "requests from a .csv or .jsonl file instead")->check(CLI::ExistingFile);
  c.add_option("--rate", o.rate, "requests a second and GPU: traffic grows with the fleet")
      ->check(CLI::Range(1e-6, 1e6))
      ->capture_default_str();
  c.add_option("--total-rate", o.total_rate, "requests a second in all: the same traffic for every fleet")->check(CLI::Range(1e-6, 1e9));
  c.add_option("--burstiness", o.burstiness, "shape of the gamma gaps: 1 Poisson, below 1 burstier")
      ->check(CLI::Range(0.01, 1000.0))
      ->capture_default_str();
  c.add_option("--seconds", o.seconds, "how long requests arrive")->check(CLI::Range(0.001, 1e7))->capture_default_str();
  c.add_option("--prefixes", o.prefixes, "shared prefixes, evenly used (0: none)")->check(CLI::Range(0, 1'000'000))->capture_default_str();
  c.add_option("--prefix-len", o.prefix_tokens, "tokens of a shared prefix, on top of the prompt")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  c.add_option("--ttft-ms", o.ttft_ms, "goal: first token within")->check(CLI::Range(0.001, 1e9))->capture_default_str();
  c.add_option("--tpot-ms", o.tpot_ms, "goal: mean time per later token within")->check(CLI::Range(0.001, 1e9))->capture_default_str();
  c.add_option("--seed", o.fleet.seed, "of lengths and arrivals")->capture_default_str();
  c.add_option("--json", o.json_file, "write the figures as JSON to this file; '-': to standard output, without the table");
  c.add_option("--svg", o.svg_file, "write a plot to this file");
}

} // namespace

void add_simulate(CLI::App& app, int& exit_code) {
  auto o = std::make_shared<options>();
  CLI::App* command = app.add_subcommand("simulate", "Say what a fleet of so many nodes would carry");
  add_fleet_flags(*command, *o);
  add_traffic_flags(*command, *o);
  command->callback([o, &exit_code] { exit_code = simulate(*o); });
}

} // namespace troupe::apps
