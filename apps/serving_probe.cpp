#include "apps/serving_probe.hpp"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "apps/bench/workload.hpp"

namespace troupe::apps {

namespace {

constexpr std::chrono::milliseconds kRest{20}; // before a lone request: threads sleep by then, as they do in a server that waits
constexpr std::int32_t kLoneOutputs = 4;

} // namespace

serving_probe::serving_probe(const engine_options& options, actors::executor_factory make_executor)
    : log_(std::make_shared<bench::step_log>()) {
  auto metrics = std::make_shared<telemetry::metrics>(served_names(options).front(), TROUPE_VERSION);
  const auto recording = [make = std::move(make_executor), log = log_](const auto& rank, const auto& publish) {
    return std::make_unique<bench::recording_executor>(make(rank, publish), log);
  };
  engine_ = start_engine(options, metrics, nullptr, recording);
  http::server_options http;
  http.port = 0;
  http.version = TROUPE_VERSION;
  http::server_hooks hooks;
  hooks.request_done = [metrics](std::string_view route, int status) { metrics->http_request(route, status); };
  server_ = std::make_unique<http::server>(http, *engine_, std::move(hooks));
  connection_.url = bench::parse_url("http://127.0.0.1:" + std::to_string(server_->port())).value;
}

serving_probe::~serving_probe() {
  server_->stop();
  engine_->stop();
}

std::vector<bench::request_record> serving_probe::load(std::size_t requests, std::int32_t prompt_tokens, std::int32_t output_tokens) {
  bench::workload_options what;
  what.model = engine_->model().names.front();
  what.input = {prompt_tokens, prompt_tokens};
  what.output = {output_tokens, output_tokens};
  what.vocab_size = engine_->model().vocab_size;
  what.seed = ++seed_;
  bench::load_options how;
  how.connection = connection_;
  how.due.assign(requests, 0.0);
  log_->take();
  auto ran = bench::run_load(how, bench::random_workload(what, requests));
  if (!ran) throw std::runtime_error(ran.failure().message);
  if (ran->interrupted) throw std::runtime_error("interrupted");
  for (const auto& record : ran->records) {
    if (!record.failure.empty()) throw std::runtime_error("a request failed: " + record.failure + ": " + record.detail);
  }
  return std::move(ran->records);
}

double serving_probe::request_ns(std::int32_t prompt_tokens) {
  std::this_thread::sleep_for(kRest);
  const auto records = load(1, prompt_tokens, kLoneOutputs);
  double waited = bench::time_to_first_token(records.front()) * 1e9;
  for (const bench::recorded_step& step : log_->take()) {
    if (step.prefill_tokens > 0) waited -= static_cast<double>(step.end_ns - step.begin_ns);
  }
  return waited;
}

std::optional<decode_pace> serving_probe::pace(std::int32_t rows, std::int32_t prompt_tokens, std::int32_t output_tokens) {
  load(static_cast<std::size_t>(rows), prompt_tokens, output_tokens);
  const auto steps = log_->take();
  std::vector<double> gaps, contexts;
  const auto decodes_all = [&](const bench::recorded_step& s) { return s.decode_rows == rows && s.prefill_tokens == 0; };
  for (std::size_t i = 1; i < steps.size(); ++i) {
    if (!decodes_all(steps[i - 1]) || !decodes_all(steps[i])) continue;
    gaps.push_back(static_cast<double>(steps[i].end_ns - steps[i - 1].end_ns));
    contexts.push_back(static_cast<double>(steps[i].decode_positions) / rows);
  }
  if (gaps.empty()) return std::nullopt;
  return decode_pace{bench::midmean(std::move(gaps)), bench::summarize(std::move(contexts)).mean};
}

} // namespace troupe::apps
