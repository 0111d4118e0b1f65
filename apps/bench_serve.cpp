#include "apps/bench_serve.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "apps/bench/arrivals.hpp"
#include "apps/bench/report.hpp"
#include "apps/load_flags.hpp"
#include "core/json.hpp"

namespace troupe::apps {
namespace {

constexpr std::int64_t fallback_vocab_size = 1000; // small enough for any real model

int complain(const std::string& line) {
  std::fprintf(stderr, "troupe bench serve: %s\n", line.c_str());
  return 1;
}

// Fills in the model's name, and its vocabulary's size where the server tells it. A message when it cannot.
std::string ask_for_model(const bench_serve_options& options, bench::workload_options& workload) {
  const bool random_tokens = options.dataset.empty() && workload.target == bench::endpoint::completions;
  if (!workload.model.empty() && (workload.vocab_size > 0 || !random_tokens)) return {};
  const auto body = bench::get(options.connection, "/v1/models");
  if (!body) return body.failure().message;
  const auto parsed = json::parse(*body);
  const auto* models = parsed ? parsed->find("data") : nullptr;
  if (!models || !models->is_array() || models->as_array().empty()) return "/v1/models lists no model";
  for (const auto& model : models->as_array()) {
    const auto* id = model.find("id");
    if (!id || !id->is_string()) continue;
    if (workload.model.empty()) workload.model = id->as_string();
    if (workload.model != id->as_string()) continue;
    const auto* size = model.find("vocab_size");
    if (workload.vocab_size <= 0 && size && size->is_int()) workload.vocab_size = size->as_int();
  }
  if (workload.model.empty()) return "/v1/models lists no model";
  if (workload.vocab_size <= 0) workload.vocab_size = fallback_vocab_size;
  return {};
}

result<std::vector<bench::planned_request>> make_requests(const bench_serve_options& options, const bench::workload_options& workload) {
  const auto count = options.num_prompts + options.warmups;
  if (options.dataset.empty()) return bench::random_workload(workload, count);
  std::ifstream file(options.dataset, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file.is_open() || file.bad()) return invalid_request("", options.dataset + ": cannot be read");
  const bool json_lines = options.dataset.ends_with(".jsonl") || options.dataset.ends_with(".json");
  auto requests = bench::file_workload(text, json_lines, workload, count);
  if (!requests) return invalid_request("", options.dataset + ": " + requests.failure().message);
  return requests;
}

std::size_t terminal_width() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

std::function<void(const bench::progress&)> progress_bar(std::size_t wanted) {
  if (!isatty(STDERR_FILENO)) return {};
  return [wanted](const bench::progress& now) {
    std::fprintf(stderr, "\r%s\x1b[K", bench::progress_line(now, wanted, terminal_width() - 1).c_str());
    std::fflush(stderr);
  };
}

// One by one; the first failure is the message.
std::string warm_up(const bench_serve_options& options, std::vector<bench::planned_request>& requests) {
  if (options.warmups == 0) return {};
  const std::vector<bench::planned_request> first(requests.begin(), requests.begin() + static_cast<std::ptrdiff_t>(options.warmups));
  requests.erase(requests.begin(), requests.begin() + static_cast<std::ptrdiff_t>(options.warmups));
  const auto ran = bench::run_load({options.connection, std::vector<double>(first.size(), 0.0), 1, {}}, first);
  if (!ran) return ran.failure().message;
  if (ran->interrupted) return "interrupted";
  for (const auto& record : ran->records) {
    if (!record.failure.empty()) return "the warm-up failed: " + record.failure + ": " + record.detail;
  }
  return {};
}

value settings(const bench_serve_options& options, const bench::workload_options& workload) {
  value_object out;
  out.set("model", workload.model);
  out.set("endpoint", workload.target == bench::endpoint::chat ? "chat" : "completions");
  out.set("num_prompts", static_cast<std::int64_t>(options.num_prompts));
  out.set("request_rate", std::isinf(options.request_rate) ? value("inf") : value(options.request_rate));
  out.set("burstiness", options.burstiness);
  const bool limited = options.max_concurrency != std::numeric_limits<std::size_t>::max();
  out.set("max_concurrency", limited ? value(static_cast<std::int64_t>(options.max_concurrency)) : value());
  out.set("dataset", options.dataset.empty() ? "random" : options.dataset);
  out.set("seed", std::to_string(workload.seed));
  return out;
}

bool write_text(const std::string& path, const std::string& text) {
  if (path == "-") return std::printf("%s", text.c_str()) >= 0 && std::fflush(stdout) == 0;
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  return !file.fail();
}

// For each kind of failure, what the first one of it said.
void explain_failures(const std::vector<bench::request_record>& records) {
  std::map<std::string, std::string> kinds;
  for (const auto& record : records) {
    if (!record.failure.empty()) kinds.emplace(record.failure, record.detail);
  }
  for (const auto& [kind, detail] : kinds) complain(kind + ": " + detail);
}

int report(const bench_serve_options& options, const bench::workload_options& workload, const bench::load_result& ran) {
  const auto figures = bench::total(ran.records, options.goodput);
  explain_failures(ran.records);
  if (options.json_file != "-") std::printf("%s", bench::text_report(figures, options.goodput).c_str());
  if (!options.json_file.empty()) {
    auto out = bench::json_report(figures, options.goodput);
    out.mutable_object().set("settings", settings(options, workload));
    if (!write_text(options.json_file, json::dump(out) + "\n")) return complain(options.json_file + ": cannot be written");
  }
  if (!options.trace_file.empty() && !write_text(options.trace_file, bench::trace_csv(ran.records))) {
    return complain(options.trace_file + ": cannot be written");
  }
  if (ran.interrupted) return 130;
  return figures.completed == 0 ? 1 : 0;
}

} // namespace

int run_bench_serve(const bench_serve_options& options) {
  auto workload = options.workload;
  if (const auto failure = ask_for_model(options, workload); !failure.empty()) return complain(failure);
  auto requests = make_requests(options, workload);
  if (!requests) return complain(requests.failure().message);
  auto planned = std::move(*requests);
  if (const auto failure = warm_up(options, planned); !failure.empty()) return complain(failure);
  bench::load_options load;
  load.connection = options.connection;
  load.due = bench::arrival_times(planned.size(), options.request_rate, options.burstiness, workload.seed);
  load.max_concurrency = options.max_concurrency;
  load.on_progress = progress_bar(planned.size());
  const auto ran = bench::run_load(load, planned);
  if (load.on_progress) std::fputc('\n', stderr);
  if (!ran) return complain(ran.failure().message);
  return report(options, workload, *ran);
}

namespace {

// What the command line says, before it is checked and turned into bench_serve_options.
struct raw_options {
  bench_serve_options parsed;
  std::string url = "http://127.0.0.1:8000", endpoint = "completions", rate = "inf", input = "128", output = "128";
  std::vector<std::string> goodput;
  double timeout = 600;
  bool stop_at_eos = false;
};

bench_serve_options finish(const raw_options& raw) {
  auto out = raw.parsed;
  const auto url = bench::parse_url(raw.url);
  if (!url.failure.empty()) throw CLI::ValidationError("--url", url.failure);
  out.connection.url = url.value;
  out.connection.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(raw.timeout * 1e3));
  out.request_rate = parse_rate(raw.rate);
  out.workload.target = raw.endpoint == "chat" ? bench::endpoint::chat : bench::endpoint::completions;
  out.workload.input = parse_lengths("--input-len", raw.input);
  out.workload.output = parse_lengths("--output-len", raw.output);
  out.workload.ignore_eos = !raw.stop_at_eos;
  const auto objectives = bench::parse_objectives(raw.goodput);
  if (!objectives.failure.empty()) throw CLI::ValidationError("--goodput", objectives.failure);
  out.goodput = objectives.value;
  if (!out.dataset.empty() && !std::ifstream(out.dataset)) throw CLI::ValidationError("--dataset", out.dataset + " cannot be read");
  return out;
}

void add_load_options(CLI::App& app, raw_options& raw) {
  app.add_option("--num-prompts", raw.parsed.num_prompts, "Requests to send")->capture_default_str()->check(CLI::Range(1, 10'000'000));
  app.add_option("--request-rate", raw.rate, "Requests a second, or 'inf' to send all at once")->capture_default_str();
  app.add_option("--burstiness", raw.parsed.burstiness, "Shape of the gaps: 1 Poisson, below 1 burstier, above 1 more even")
      ->capture_default_str()
      ->check(CLI::Range(0.01, 1000.0));
  app.add_option("--max-concurrency", raw.parsed.max_concurrency, "Most requests at once; those due beyond it wait at the client")
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--num-warmups", raw.parsed.warmups, "Requests sent one by one before the run, not counted")
      ->capture_default_str()
      ->check(CLI::Range(0, 100'000));
  app.add_option("--timeout", raw.timeout, "Seconds that one request may take")->capture_default_str()->check(CLI::Range(0.001, 1e6));
  app.add_option("--goodput", raw.goodput, "Objectives in ms, all to be met: ttft:MS tpot:MS e2el:MS");
}

void add_workload_options(CLI::App& app, raw_options& raw) {
  auto& workload = raw.parsed.workload;
  app.add_option("--endpoint", raw.endpoint, "completions or chat")->capture_default_str()->check(CLI::IsMember({"completions", "chat"}));
  app.add_option("--model", workload.model, "Model name to send (default: the first of /v1/models)");
  app.add_option("--input-len", raw.input, "Prompt tokens (words for chat): N, or LOW:HIGH drawn evenly")->capture_default_str();
  app.add_option("--output-len", raw.output, "Tokens to generate: N, or LOW:HIGH drawn evenly")->capture_default_str();
  app.add_option("--prefix-len", workload.prefix_length, "Tokens that all random prompts share, before --input-len")
      ->capture_default_str()
      ->check(CLI::Range(0, 10'000'000));
  app.add_option("--vocab-size", workload.vocab_size, "Random token ids are below it (default: the server's word, else 1000)")
      ->check(CLI::Range(1, 100'000'000));
  app.add_option("--dataset", raw.parsed.dataset, "Prompts from a file: a line each, or .jsonl objects with prompt or messages");
  app.add_option("--temperature", workload.temperature, "0 is greedy")->capture_default_str()->check(CLI::Range(0.0, 100.0));
  app.add_flag("--stop-at-eos", raw.stop_at_eos, "Let the model end an answer early (otherwise ignore_eos is sent)");
  app.add_option("--seed", workload.seed, "Of prompts, lengths and arrivals")->capture_default_str();
}

} // namespace

void add_bench_serve(CLI::App& bench, int& exit_code) {
  auto raw = std::make_shared<raw_options>();
  auto* app = bench.add_subcommand("serve", "Load a running server and measure what its users would feel");
  app->add_option("--url", raw->url, "The server, http://HOST:PORT")->capture_default_str();
  app->add_option("--api-key", raw->parsed.connection.api_key, "Sent as a bearer token")->envname("TROUPE_API_KEY");
  app->add_option("--json", raw->parsed.json_file, "Write the figures as JSON to this file; '-': to standard output, without the table");
  app->add_option("--save-trace", raw->parsed.trace_file,
                  "Write when each request was sent, and its tokens, as a CSV for troupe simulate --trace");
  add_load_options(*app, *raw);
  add_workload_options(*app, *raw);
  app->callback([raw, &exit_code] { exit_code = run_bench_serve(finish(*raw)); });
}

} // namespace troupe::apps
