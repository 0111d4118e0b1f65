#include "apps/bench/generation_load.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

#include "apps/bench/arrivals.hpp"

namespace troupe::bench {
namespace {

using steady_clock = std::chrono::steady_clock;

// Of requests that have not ended.
class countdown {
 public:
  explicit countdown(std::size_t left) : left_(left) {}
  void one_less() {
    const std::lock_guard lock(guard_);
    if (--left_ == 0) none_.notify_all();
  }
  void wait() {
    std::unique_lock lock(guard_);
    none_.wait(lock, [&] { return left_ == 0; });
  }

 private:
  std::mutex guard_;
  std::condition_variable none_;
  std::size_t left_;
};

// Read by others after its last call.
class timing_sink final : public token_sink {
 public:
  timing_sink(steady_clock::time_point start, countdown& open) : start_(start), open_(open) {}

  void on_prompt(const prompt_report&) override {}
  void on_output(const output_chunk& chunk) override {
    if (!chunk.tokens.empty()) outputs.push_back(now());
  }
  void on_finished(const usage_report& report) override {
    usage = report;
    end();
  }
  void on_error(const error& reason) override {
    failure = reason.message.empty() ? "failed" : reason.message;
    end();
  }
  double now() const { return std::chrono::duration<double>(steady_clock::now() - start_).count(); }

  double sent = 0, ended = 0;
  std::vector<double> outputs;
  usage_report usage;
  std::string failure;

 private:
  void end() {
    ended = now();
    open_.one_less();
  }

  steady_clock::time_point start_;
  countdown& open_;
};

generation_request make_request(const planned_generation& plan, request_id id, const std::string& model) {
  generation_request r;
  r.id = id;
  r.model = model;
  r.prompts = {token_prompt(plan.prompt)};
  r.max_tokens = plan.output_tokens;
  r.sampling.temperature = 0;
  r.ignore_eos = true;
  r.seed = id;
  return r;
}

steady_window window_of(const std::vector<std::shared_ptr<timing_sink>>& sinks, std::size_t burst) {
  steady_window w;
  for (std::size_t i = 0; i < sinks.size(); ++i) {
    if (i < burst && !sinks[i]->outputs.empty()) w.from = std::max(w.from, sinks[i]->outputs.front());
    w.to = std::max(w.to, burst > 0 ? sinks[i]->sent : sinks[i]->ended);
  }
  double busy = 0;
  for (const auto& s : sinks) busy += std::max(0.0, std::min(s->ended, w.to) - std::max(s->sent, w.from));
  w.concurrency = w.to > w.from ? busy / (w.to - w.from) : 0;
  return w;
}

request_record record_of(const timing_sink& sink, const planned_generation& plan, steady_window& window) {
  request_record r;
  r.due = plan.due;
  r.sent = sink.sent;
  r.ended = sink.ended;
  r.failure = sink.failure;
  r.detail = sink.failure;
  r.prompt_tokens = sink.usage.prompt_tokens;
  r.output_tokens = sink.usage.completion_tokens;
  if (sink.outputs.empty()) return r;
  r.first = sink.outputs.front();
  r.last = sink.outputs.back();
  for (std::size_t i = 1; i < sink.outputs.size(); ++i) {
    if (sink.outputs[i - 1] < window.from || sink.outputs[i] > window.to) continue;
    r.gaps.push_back(sink.outputs[i] - sink.outputs[i - 1]);
    ++window.gaps;
  }
  return r;
}

} // namespace

std::vector<planned_generation> plan_generations(const generation_options& o) {
  std::mt19937_64 random(o.seed);
  const auto between = [&](std::int64_t low, std::int64_t high) { return std::uniform_int_distribution<std::int64_t>(low, high)(random); };
  const std::size_t burst = std::min(o.burst, o.count);
  const auto due = arrival_times(o.count - burst, o.rate, o.burstiness, o.seed);
  std::vector<planned_generation> load(o.count);
  for (std::size_t i = 0; i < o.count; ++i) {
    planned_generation& p = load[i];
    p.due = i < burst ? 0 : due[i - burst];
    p.prompt.resize(static_cast<std::size_t>(between(o.input.low, o.input.high)));
    for (token_id& t : p.prompt) t = static_cast<token_id>(between(0, o.vocab_size - 1));
    const std::int64_t outputs = between(o.output.low, o.output.high);
    p.output_tokens = static_cast<std::int32_t>(i < burst ? between(1, outputs) : outputs);
  }
  return load;
}

generation_outcome run_generations(request_handler& handler, const std::vector<planned_generation>& load, std::size_t burst,
                                   request_id first_id) {
  if (load.empty()) return {};
  countdown open(load.size());
  const auto start = steady_clock::now();
  std::vector<std::shared_ptr<timing_sink>> sinks;
  for (std::size_t i = 0; i < load.size(); ++i) sinks.push_back(std::make_shared<timing_sink>(start, open));
  const std::string model = handler.model().names.front();
  for (std::size_t i = 0; i < load.size(); ++i) {
    auto request = make_request(load[i], first_id + i, model);
    std::this_thread::sleep_until(start + std::chrono::duration_cast<steady_clock::duration>(std::chrono::duration<double>(load[i].due)));
    sinks[i]->sent = sinks[i]->now();
    handler.submit(std::move(request), sinks[i]);
  }
  open.wait();
  generation_outcome out;
  out.steady = window_of(sinks, burst);
  for (std::size_t i = 0; i < load.size(); ++i) out.records.push_back(record_of(*sinks[i], load[i], out.steady));
  return out;
}

} // namespace troupe::bench
