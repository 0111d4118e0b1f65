#include "telemetry/metrics.hpp"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <limits>
#include <mutex>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "core/json.hpp"
#include "telemetry/buckets.hpp"
#include "telemetry/group_series.hpp"
#include "telemetry/node_series.hpp"
#include "telemetry/process_stats.hpp"

namespace troupe::telemetry {
namespace {

using prometheus::Counter;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::Labels;
using prometheus::Registry;

constexpr std::array<std::string_view, 5> outcomes = {"stop", "length", "cancelled", "rejected", "failed"};
// The last one stands for every path that is not a route.
constexpr std::array<std::string_view, 12> routes = {"/v1/models", "/v1/models/{id}", "/v1/completions", "/v1/chat/completions",
                                                     "/tokenize",  "/detokenize",     "/version",        "/livez",
                                                     "/readyz",    "/health",         "/metrics",        "other"};
constexpr std::array<std::string_view, 5> status_classes = {"1xx", "2xx", "3xx", "4xx", "5xx"};

// What can be reported wrongly; the log has one line for each at most.
enum class statistic : std::uint8_t {
  prompt_tokens,
  generation_tokens,
  cached_tokens,
  preemptions,
  drafts,
  step_sequences,
  step_tokens,
  running,
  waiting,
  kv_blocks,
  duration,
  outcome_label,
  http_status,
  group,
  moved,
  count
};
constexpr std::array<std::string_view, static_cast<std::size_t>(statistic::count)> statistic_names = {
    "prompt tokens", "generation tokens", "cached tokens", "preemptions", "drafts",      "step sequences",  "step tokens",    "running",
    "waiting",       "KV blocks",         "duration",      "outcome",     "HTTP status", "replica or rank", "moved sequences"};

Counter& add_counter(Registry& registry, const char* name, const char* help, const Labels& labels = {}) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry).Add(labels);
}

Gauge& add_gauge(Registry& registry, const char* name, const char* help, const Labels& labels = {}) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry).Add(labels);
}

Histogram& add_histogram(Registry& registry, const char* name, const char* help, const Labels& labels, const std::vector<double>& bounds) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add(labels, bounds);
}

// A label value has to be UTF-8, or Prometheus refuses the whole scrape; what is not comes out as U+FFFD.
std::string utf8(std::string_view text) {
  const auto clean = json::parse(json::quote(text));
  return clean && clean->is_string() ? clean->as_string() : std::string();
}

void log_to_stderr(std::string_view line) { std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data()); }

void append(std::vector<prometheus::MetricFamily>& families, const char* name, const char* help, prometheus::MetricType type,
            std::optional<double> value) {
  if (!value) return;
  prometheus::ClientMetric sample;
  (type == prometheus::MetricType::Counter ? sample.counter.value : sample.gauge.value) = *value;
  families.push_back({name, help, type, {std::move(sample)}});
}

void append_process(std::vector<prometheus::MetricFamily>& families) {
  using prometheus::MetricType;
  append(families, "process_open_fds", "Open file descriptors.", MetricType::Gauge, count_open_fds());
  append(families, "process_max_fds", "Most file descriptors that may be open (soft limit).", MetricType::Gauge, max_open_fds());
  const auto stats = read_process_stats();
  if (!stats) return;
  append(families, "process_cpu_seconds_total", "User and system CPU time.", MetricType::Counter, stats->cpu_seconds);
  append(families, "process_start_time_seconds", "Start of the process, Unix time.", MetricType::Gauge, stats->start_time_seconds);
  append(families, "process_threads", "Threads of the process.", MetricType::Gauge, stats->threads);
  append(families, "process_virtual_memory_bytes", "Virtual memory size.", MetricType::Gauge, stats->virtual_bytes);
  append(families, "process_resident_memory_bytes", "Resident memory size.", MetricType::Gauge, stats->resident_bytes);
}

} // namespace

struct metrics::impl {
  Registry registry;
  const Labels model;
  const log_function log;

  std::array<Counter*, outcomes.size()> requests{};
  std::array<std::array<Counter*, status_classes.size()>, routes.size()> http_requests{};
  // Prompt tokens are counted before cached ones and read after them (Collect() follows the order of creation),
  // so that no scrape shows more cached tokens than prompt tokens.
  Counter &cached_tokens, &prompt_tokens, &generation_tokens;
  // Likewise accepted drafts are counted after the drafted ones and read before them.
  std::array<Counter*, draft_places> accepted{}, drafted{};
  Counter &preemptions, &device_restarts, &moved_sequences, &keeper_restarts, &kept_filled, &kept_mapped;
  Counter &numeric_faults, &slow_readers, &invalid_statistics;
  Gauge &running, &waiting, &kv_used, &kv_cached, &kv_free, &kv_usage, &speculating, &kept_bytes, &ready;
  Histogram &time_to_first_token, &inter_token_latency, &time_per_output_token;
  Histogram &queue_time, &prefill_time, &decode_time, &request_time, &step_time, &step_sequences, &step_tokens;

  std::array<std::atomic<bool>, static_cast<std::size_t>(statistic::count)> logged{};
  std::atomic<std::uint64_t> prompt_total{0}, cached_total{0}; // what the two counters have been given
  mutable std::mutex engine_guard;                             // set_engine() is one assignment; the gauges follow when a scrape comes
  std::vector<engine_state> engines;                           // by replica
  std::vector<group_series> groups;                            // by replica
  node_series nodes;
  mutable std::mutex render_guard;

  impl(std::string_view served_model, std::string_view version, log_function log_line, group_shape shape);
  group_series* group_of(std::int32_t replica) noexcept;
  void bad(statistic which, std::string_view detail) noexcept;
  std::int64_t checked(statistic which, std::int64_t value) noexcept;
  std::uint64_t admit_cached(std::uint64_t wanted) noexcept;
  double seconds(std::uint64_t ns) noexcept;
  Histogram& stage(const char* name, const char* help) { return add_histogram(registry, name, help, model, time_buckets()); }
  Gauge& kv_blocks(const char* state) {
    auto labels = model;
    labels.emplace("state", state);
    return add_gauge(registry, "troupe_kv_blocks", "KV cache blocks by state; the three add up to the pool.", labels);
  }
  void update_engine_gauges();
};

metrics::impl::impl(std::string_view served_model, std::string_view version, log_function log_line, group_shape shape)
    : model{{"model", utf8(served_model)}},
      log(log_line ? std::move(log_line) : log_to_stderr),
      cached_tokens(add_counter(registry, "troupe_cached_tokens_total", "Prompt tokens found in the prefix cache.", model)),
      prompt_tokens(add_counter(registry, "troupe_prompt_tokens_total", "Prompt tokens, cached ones included.", model)),
      generation_tokens(add_counter(registry, "troupe_generation_tokens_total", "Tokens generated.", model)),
      preemptions(add_counter(registry, "troupe_preemptions_total", "Sequences put back in the queue to free KV blocks.", model)),
      device_restarts(add_counter(registry, "troupe_device_restarts_total", "Devices lost and started again.", model)),
      moved_sequences(add_counter(registry, "troupe_moved_sequences_total", "Sequences that went on at another replica.", model)),
      keeper_restarts(add_counter(registry, "troupe_keeper_restarts_total", "Keepers of weights lost and started again.", model)),
      kept_filled(add_counter(registry, "troupe_kept_weights_filled_total", "Loads of weights that were left with the keeper.", model)),
      kept_mapped(add_counter(registry, "troupe_kept_weights_mapped_total", "Starts that found their weights with the keeper.", model)),
      numeric_faults(add_counter(registry, "troupe_numeric_faults_total", "Sequences ended because their logits were not finite.", model)),
      slow_readers(add_counter(registry, "troupe_slow_readers_dropped_total", "Streams closed because the client read too slowly.")),
      invalid_statistics(add_counter(registry, "troupe_invalid_statistics_total", "Impossible statistics that were clamped (a bug).")),
      running(add_gauge(registry, "troupe_requests_running", "Sequences that hold a slot on the device.", model)),
      waiting(add_gauge(registry, "troupe_requests_waiting", "Sequences in the queue.", model)),
      kv_used(kv_blocks("used")),
      kv_cached(kv_blocks("cached")),
      kv_free(kv_blocks("free")),
      kv_usage(add_gauge(registry, "troupe_kv_usage_ratio", "Used KV blocks over all KV blocks, 0 to 1.", model)),
      speculating(add_gauge(registry, "troupe_spec_active", "1 while drafts are verified where there are any, else 0.", model)),
      kept_bytes(add_gauge(registry, "troupe_kept_weights_bytes", "Weights that the keeper holds.", model)),
      ready(add_gauge(registry, "troupe_ready", "1 when requests are accepted, else 0.", model)),
      time_to_first_token(stage("troupe_time_to_first_token_seconds", "Arrival to first token, queue included; once per request.")),
      inter_token_latency(stage("troupe_inter_token_latency_seconds", "Time between two outputs of one choice.")),
      time_per_output_token(stage("troupe_time_per_output_token_seconds", "Decode time over output tokens less one, per request.")),
      queue_time(stage("troupe_request_queue_seconds", "Arrival to first scheduled.")),
      prefill_time(stage("troupe_request_prefill_seconds", "First scheduled to first token.")),
      decode_time(stage("troupe_request_decode_seconds", "First token to last.")),
      request_time(stage("troupe_request_seconds", "Arrival to last token, of requests that ended by stop or length.")),
      step_time(stage("troupe_step_seconds", "Duration of one device step.")),
      step_sequences(add_histogram(registry, "troupe_step_sequences", "Sequences in one device step.", model, sequence_buckets())),
      step_tokens(add_histogram(registry, "troupe_step_tokens", "Tokens computed in one device step.", model, token_buckets())),
      engines(static_cast<std::size_t>(std::max(1, shape.replicas))),
      groups(add_group_series(registry, model, shape)),
      nodes(registry, model) {
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    auto labels = model;
    labels.emplace("outcome", outcomes[i]);
    requests[i] = &add_counter(registry, "troupe_requests_total", "Requests that ended, by how they ended.", labels);
  }
  const auto by_place = [&](const char* name, const char* help, std::array<Counter*, draft_places>& counters) {
    for (std::size_t i = 0; i < draft_places; ++i) {
      auto labels = model;
      labels.emplace("position", std::to_string(i + 1) + (i + 1 < draft_places ? "" : "+"));
      counters[i] = &add_counter(registry, name, help, labels);
    }
  };
  by_place("troupe_spec_accepted_tokens_total", "Drafts that were drawn, by position in their run.", accepted);
  by_place("troupe_spec_drafted_tokens_total", "Drafts that were verified, by position in their run.", drafted);
  for (std::size_t i = 0; i < routes.size(); ++i) {
    for (std::size_t j = 0; j < status_classes.size(); ++j) {
      http_requests[i][j] = &add_counter(registry, "troupe_http_requests_total", "HTTP requests answered, by route and status class.",
                                         {{"route", std::string(routes[i])}, {"status", std::string(status_classes[j])}});
    }
  }
  add_gauge(registry, "troupe_build_info", "Always 1; the labels tell the build.", {{"version", utf8(version)}}).Set(1);
}

void metrics::impl::bad(statistic which, std::string_view detail) noexcept {
  invalid_statistics.Increment();
  const auto index = static_cast<std::size_t>(which);
  if (logged[index].exchange(true)) return;
  try {
    log("telemetry: bad statistic for " + std::string(statistic_names[index]) + ": " + std::string(detail) +
        "; clamped, and further ones of this kind are only counted");
  } catch (...) { // a log that fails must not take the engine down
  }
}

std::int64_t metrics::impl::checked(statistic which, std::int64_t value) noexcept {
  if (value >= 0) return value;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%lld", static_cast<long long>(value));
  bad(which, text.data());
  return 0;
}

// A difference of two clock readings that ran backwards arrives as a number near 2^64.
double metrics::impl::seconds(std::uint64_t ns) noexcept {
  if (ns > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    bad(statistic::duration, "end before begin");
    return 0;
  }
  return static_cast<double>(ns) * 1e-9;
}

// As much of `wanted` as keeps the sum of cached tokens at or below that of prompt tokens.
std::uint64_t metrics::impl::admit_cached(std::uint64_t wanted) noexcept {
  if (wanted == 0) return 0;
  std::uint64_t before = cached_total, admitted = 0;
  do {
    admitted = std::min(wanted, prompt_total - before);
  } while (!cached_total.compare_exchange_weak(before, before + admitted));
  if (admitted < wanted) bad(statistic::cached_tokens, "more than all prompts have");
  return admitted;
}

void metrics::impl::update_engine_gauges() {
  engine_state now;
  {
    const std::lock_guard lock(engine_guard);
    for (std::size_t r = 0; r < engines.size(); ++r) {
      const engine_state& e = engines[r];
      groups[r].sequences.Set(static_cast<double>(e.running + e.waiting));
      now.running += e.running;
      now.waiting += e.waiting;
      now.kv_blocks_total += e.kv_blocks_total;
      now.kv_blocks_used += e.kv_blocks_used;
      now.kv_blocks_cached += e.kv_blocks_cached;
      now.speculating |= e.speculating;
    }
  }
  running.Set(static_cast<double>(now.running));
  waiting.Set(static_cast<double>(now.waiting));
  kv_used.Set(static_cast<double>(now.kv_blocks_used));
  kv_cached.Set(static_cast<double>(now.kv_blocks_cached));
  kv_free.Set(static_cast<double>(now.kv_blocks_total - now.kv_blocks_used - now.kv_blocks_cached));
  speculating.Set(now.speculating ? 1 : 0);
  kv_usage.Set(now.kv_blocks_total > 0 ? static_cast<double>(now.kv_blocks_used) / static_cast<double>(now.kv_blocks_total) : 0);
}

metrics::metrics(std::string_view served_model, std::string_view version, log_function log, group_shape groups)
    : impl_(std::make_unique<impl>(served_model, version, std::move(log), groups)) {}

metrics::~metrics() = default;

void metrics::request_finished(outcome how, const request_times& times) noexcept {
  auto index = static_cast<std::size_t>(how);
  if (index >= outcomes.size()) {
    impl_->bad(statistic::outcome_label, "not an outcome, counted as failed");
    index = static_cast<std::size_t>(outcome::failed);
  }
  impl_->requests[index]->Increment();
  const auto observe = [](Histogram& where, double seconds) {
    if (seconds > 0) where.Observe(seconds);
  };
  const double decode = impl_->seconds(times.decode_ns);
  observe(impl_->queue_time, impl_->seconds(times.queue_ns));
  observe(impl_->prefill_time, impl_->seconds(times.prefill_ns));
  observe(impl_->decode_time, decode);
  if (how == outcome::stop || how == outcome::length) observe(impl_->request_time, impl_->seconds(times.total_ns));
  if (times.output_tokens >= 2) observe(impl_->time_per_output_token, decode / static_cast<double>(times.output_tokens - 1));
}

void metrics::first_token(std::uint64_t since_arrival_ns) noexcept { impl_->time_to_first_token.Observe(impl_->seconds(since_arrival_ns)); }

void metrics::token_gap(std::uint64_t ns) noexcept { impl_->inter_token_latency.Observe(impl_->seconds(ns)); }

void metrics::tokens(std::int64_t prompt, std::int64_t generated, std::int64_t cached) noexcept {
  const auto prompt_step = impl_->checked(statistic::prompt_tokens, prompt);
  if (prompt_step > 0) {
    impl_->prompt_tokens.Increment(static_cast<double>(prompt_step));
    impl_->prompt_total += static_cast<std::uint64_t>(prompt_step); // after the counter: cached tokens may follow it up to here
  }
  const auto cached_step = impl_->admit_cached(static_cast<std::uint64_t>(impl_->checked(statistic::cached_tokens, cached)));
  impl_->cached_tokens.Increment(static_cast<double>(cached_step));
  impl_->generation_tokens.Increment(static_cast<double>(impl_->checked(statistic::generation_tokens, generated)));
}

void metrics::step(std::uint64_t duration_ns, std::int64_t sequences, std::int64_t batched_tokens) noexcept {
  impl_->step_time.Observe(impl_->seconds(duration_ns));
  impl_->step_sequences.Observe(static_cast<double>(impl_->checked(statistic::step_sequences, sequences)));
  impl_->step_tokens.Observe(static_cast<double>(impl_->checked(statistic::step_tokens, batched_tokens)));
}

void metrics::preempted(std::int64_t count) noexcept {
  impl_->preemptions.Increment(static_cast<double>(impl_->checked(statistic::preemptions, count)));
}

void metrics::drafts(std::size_t place, std::int64_t drafted, std::int64_t accepted) noexcept {
  const std::size_t i = std::min(place, draft_places - 1);
  impl_->drafted[i]->Increment(static_cast<double>(impl_->checked(statistic::drafts, drafted)));
  impl_->accepted[i]->Increment(static_cast<double>(impl_->checked(statistic::drafts, accepted)));
}

group_series* metrics::impl::group_of(std::int32_t replica) noexcept {
  if (replica >= 0 && static_cast<std::size_t>(replica) < groups.size()) return &groups[static_cast<std::size_t>(replica)];
  bad(statistic::group, "outside the shape of the groups");
  return nullptr;
}

void metrics::rank_step(std::int32_t replica, std::int32_t rank, const rank_times& times) noexcept {
  group_series* group = impl_->group_of(replica);
  if (group == nullptr) return;
  if (rank < 0 || static_cast<std::size_t>(rank) >= group->ranks.size()) return impl_->bad(statistic::group, "no such rank");
  rank_series& series = group->ranks[static_cast<std::size_t>(rank)];
  series.step_time.Observe(impl_->seconds(times.step_ns));
  series.lag.Increment(impl_->seconds(times.lag_ns));
  series.wait.Increment(impl_->seconds(times.wait_ns));
  series.move.Increment(impl_->seconds(times.move_ns));
}

void metrics::group_restarted(std::int32_t replica) noexcept {
  impl_->device_restarts.Increment();
  if (group_series* group = impl_->group_of(replica)) group->restarts.Increment();
}

void metrics::start_failed(std::int32_t replica) noexcept {
  if (group_series* group = impl_->group_of(replica)) group->failed_starts.Increment();
}

void metrics::collective_failed(std::int32_t replica, collective_fault fault) noexcept {
  group_series* group = impl_->group_of(replica);
  if (group == nullptr) return;
  const auto index = static_cast<std::size_t>(fault);
  if (index >= group->collective_faults.size()) return impl_->bad(statistic::group, "no such fault of a collective");
  group->collective_faults[index]->Increment();
}

void metrics::set_group(std::int32_t replica, bool up, std::int64_t epoch) noexcept {
  group_series* group = impl_->group_of(replica);
  if (group == nullptr) return;
  group->up.Set(up ? 1 : 0);
  group->epoch.Set(static_cast<double>(epoch));
}

void metrics::set_group_waiting(std::int32_t replica, bool waiting) noexcept {
  if (group_series* group = impl_->group_of(replica)) group->waiting.Set(waiting ? 1 : 0);
}

void metrics::moved(std::int64_t sequences) noexcept {
  impl_->moved_sequences.Increment(static_cast<double>(impl_->checked(statistic::moved, sequences)));
}

void metrics::set_node(const std::string& name, const node_figures& now) noexcept try {
  impl_->nodes.set(name, now);
} catch (...) { // no memory for a series: it is missing
}

void metrics::node_lost() noexcept { impl_->nodes.lost(); }
void metrics::node_refused() noexcept { impl_->nodes.refused(); }

void metrics::kept_weights(std::uint64_t bytes, std::uint64_t filled, std::uint64_t mapped) noexcept {
  impl_->kept_bytes.Set(static_cast<double>(bytes));
  impl_->kept_filled.Increment(static_cast<double>(filled));
  impl_->kept_mapped.Increment(static_cast<double>(mapped));
}

void metrics::keeper_restarted() noexcept { impl_->keeper_restarts.Increment(); }

void metrics::numeric_fault() noexcept { impl_->numeric_faults.Increment(); }

void metrics::set_engine(std::int32_t replica, const engine_state& now) noexcept {
  if (impl_->group_of(replica) == nullptr) return;
  engine_state clean;
  clean.speculating = now.speculating;
  clean.running = impl_->checked(statistic::running, now.running);
  clean.waiting = impl_->checked(statistic::waiting, now.waiting);
  clean.kv_blocks_total = impl_->checked(statistic::kv_blocks, now.kv_blocks_total);
  clean.kv_blocks_used = impl_->checked(statistic::kv_blocks, now.kv_blocks_used);
  clean.kv_blocks_cached = impl_->checked(statistic::kv_blocks, now.kv_blocks_cached);
  if (clean.kv_blocks_used > clean.kv_blocks_total || clean.kv_blocks_cached > clean.kv_blocks_total - clean.kv_blocks_used) {
    impl_->bad(statistic::kv_blocks, "used and cached are more than all");
    clean.kv_blocks_used = std::min(clean.kv_blocks_used, clean.kv_blocks_total);
    clean.kv_blocks_cached = std::min(clean.kv_blocks_cached, clean.kv_blocks_total - clean.kv_blocks_used);
  }
  const std::lock_guard lock(impl_->engine_guard);
  impl_->engines[static_cast<std::size_t>(replica)] = clean;
}

void metrics::set_ready(bool ready) noexcept { impl_->ready.Set(ready ? 1 : 0); }

void metrics::http_request(std::string_view route, int status) noexcept {
  const auto known = std::find(routes.begin(), routes.end() - 1, route);
  int status_class = status / 100;
  if (status < 100 || status > 599) {
    impl_->bad(statistic::http_status, "not within 100 to 599, counted as 5xx");
    status_class = 5;
  }
  impl_->http_requests[static_cast<std::size_t>(known - routes.begin())][static_cast<std::size_t>(status_class - 1)]->Increment();
}

void metrics::slow_reader_dropped() noexcept { impl_->slow_readers.Increment(); }

std::string metrics::render() const noexcept try {
  const std::lock_guard lock(impl_->render_guard);
  impl_->update_engine_gauges();
  auto families = impl_->registry.Collect();
  append_process(families);
  std::sort(families.begin(), families.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  for (auto& family : families) {
    std::sort(family.metric.begin(), family.metric.end(), [](const auto& a, const auto& b) { return a.label < b.label; });
  }
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, families);
  return std::move(out).str();
} catch (...) {
  return {};
}

} // namespace troupe::telemetry
