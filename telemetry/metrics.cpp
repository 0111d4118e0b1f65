#include "telemetry/metrics.hpp"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <sstream>
#include <utility>
#include <vector>

#include "core/json.hpp"
#include "telemetry/engine_series.hpp"
#include "telemetry/group_series.hpp"
#include "telemetry/http_series.hpp"
#include "telemetry/node_series.hpp"
#include "telemetry/process_series.hpp"
#include "telemetry/request_series.hpp"
#include "telemetry/series.hpp"
#include "telemetry/statistic_checks.hpp"

namespace troupe::telemetry {
namespace {

// A label value has to be UTF-8, or Prometheus refuses the whole scrape; what is not comes out as U+FFFD.
std::string utf8(std::string_view text) {
  const auto clean = json::parse(json::quote(text));
  return clean && clean->is_string() ? clean->as_string() : std::string();
}

} // namespace

struct metrics::impl {
  prometheus::Registry registry;
  const label_map model;
  statistic_checks checks;
  request_series requests;
  engine_series engine;
  std::vector<group_series> groups; // by replica
  node_series nodes;
  http_series http;
  prometheus::Counter &device_restarts, &moved_sequences, &keeper_restarts, &kept_filled, &kept_mapped, &numeric_faults;
  prometheus::Gauge &kept_bytes, &ready;
  mutable std::mutex render_guard;

  impl(std::string_view served_model, std::string_view version, log_function log, group_shape shape);
  group_series* group_of(std::int32_t replica) noexcept;
  void update_gauges();
};

metrics::impl::impl(std::string_view served_model, std::string_view version, log_function log, group_shape shape)
    : model{{"model", utf8(served_model)}},
      checks(registry, std::move(log)),
      requests(registry, model, checks),
      engine(registry, model, shape.replicas, checks),
      groups(add_group_series(registry, model, shape)),
      nodes(registry, model),
      http(registry, checks),
      device_restarts(add_counter(registry, "troupe_device_restarts_total", "Devices lost and started again.", model)),
      moved_sequences(add_counter(registry, "troupe_moved_sequences_total", "Sequences that went on at another replica.", model)),
      keeper_restarts(add_counter(registry, "troupe_keeper_restarts_total", "Keepers of weights lost and started again.", model)),
      kept_filled(add_counter(registry, "troupe_kept_weights_filled_total", "Loads of weights that were left with the keeper.", model)),
      kept_mapped(add_counter(registry, "troupe_kept_weights_mapped_total", "Starts that found their weights with the keeper.", model)),
      numeric_faults(add_counter(registry, "troupe_numeric_faults_total", "Sequences ended because their logits were not finite.", model)),
      kept_bytes(add_gauge(registry, "troupe_kept_weights_bytes", "Weights that the keeper holds.", model)),
      ready(add_gauge(registry, "troupe_ready", "1 when requests are accepted, else 0.", model)) {
  add_gauge(registry, "troupe_build_info", "Always 1; the labels tell the build.", {{"version", utf8(version)}}).Set(1);
}

group_series* metrics::impl::group_of(std::int32_t replica) noexcept {
  if (replica >= 0 && static_cast<std::size_t>(replica) < groups.size()) return &groups[static_cast<std::size_t>(replica)];
  checks.bad(statistic::group, "outside the shape of the groups");
  return nullptr;
}

void metrics::impl::update_gauges() {
  const auto engines = engine.update_gauges();
  for (std::size_t r = 0; r < engines.size(); ++r) groups[r].sequences.Set(static_cast<double>(engines[r].running + engines[r].waiting));
}

metrics::metrics(std::string_view served_model, std::string_view version, log_function log, group_shape groups)
    : impl_(std::make_unique<impl>(served_model, version, std::move(log), groups)) {}

metrics::~metrics() = default;

// -- requests ---------------------------------------------------------------------------------------------------------------------

void metrics::request_finished(outcome how, const request_times& times) noexcept { impl_->requests.finished(how, times); }
void metrics::first_token(std::uint64_t since_arrival_ns) noexcept { impl_->requests.first_token(since_arrival_ns); }
void metrics::token_gap(std::uint64_t ns) noexcept { impl_->requests.token_gap(ns); }

void metrics::tokens(std::int64_t prompt, std::int64_t generated, std::int64_t cached) noexcept {
  impl_->requests.tokens(prompt, generated, cached);
}

void metrics::drafts(std::size_t place, std::int64_t drafted, std::int64_t accepted) noexcept {
  impl_->requests.drafts(place, drafted, accepted);
}

void metrics::http_request(std::string_view route, int status) noexcept { impl_->http.answered(route, status); }
void metrics::slow_reader_dropped() noexcept { impl_->http.slow_reader_dropped(); }
void metrics::set_ready(bool ready) noexcept { impl_->ready.Set(ready ? 1 : 0); }

// -- the engine -------------------------------------------------------------------------------------------------------------------

void metrics::step(std::uint64_t duration_ns, std::int64_t sequences, std::int64_t batched_tokens) noexcept {
  impl_->engine.step(duration_ns, sequences, batched_tokens);
}

void metrics::preempted(std::int64_t count) noexcept { impl_->engine.preempted(count); }
void metrics::numeric_fault() noexcept { impl_->numeric_faults.Increment(); }

void metrics::set_engine(std::int32_t replica, const engine_state& now) noexcept {
  if (impl_->group_of(replica) != nullptr) impl_->engine.set(static_cast<std::size_t>(replica), now);
}

// -- groups and ranks -------------------------------------------------------------------------------------------------------------

void metrics::rank_step(std::int32_t replica, std::int32_t rank, const rank_times& times) noexcept {
  group_series* group = impl_->group_of(replica);
  if (group == nullptr) return;
  if (rank < 0 || static_cast<std::size_t>(rank) >= group->ranks.size()) return impl_->checks.bad(statistic::group, "no such rank");
  rank_series& series = group->ranks[static_cast<std::size_t>(rank)];
  series.step_time.Observe(impl_->checks.seconds(times.step_ns));
  series.lag.Increment(impl_->checks.seconds(times.lag_ns));
  series.wait.Increment(impl_->checks.seconds(times.wait_ns));
  series.move.Increment(impl_->checks.seconds(times.move_ns));
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
  if (index >= group->collective_faults.size()) return impl_->checks.bad(statistic::group, "no such fault of a collective");
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
  impl_->moved_sequences.Increment(static_cast<double>(impl_->checks.checked(statistic::moved, sequences)));
}

// -- machines and kept weights ----------------------------------------------------------------------------------------------------

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

std::string metrics::render() const noexcept try {
  const std::lock_guard lock(impl_->render_guard);
  impl_->update_gauges();
  auto families = impl_->registry.Collect();
  append_process_series(families);
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
