#include "telemetry/request_series.hpp"

#include <prometheus/counter.h>
#include <prometheus/histogram.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "telemetry/buckets.hpp"

namespace troupe::telemetry {
namespace {

constexpr std::array<std::string_view, 5> outcomes = {"stop", "length", "cancelled", "rejected", "failed"};

prometheus::Histogram& stage(prometheus::Registry& registry, const label_map& model, const char* name, const char* help) {
  return add_histogram(registry, name, help, model, time_buckets());
}

void add_by_place(prometheus::Registry& registry, const label_map& model, const char* name, const char* help,
                  std::array<prometheus::Counter*, draft_places>& counters) {
  for (std::size_t i = 0; i < draft_places; ++i) {
    const std::string place = std::to_string(i + 1) + (i + 1 < draft_places ? "" : "+");
    counters[i] = &add_counter(registry, name, help, with_label(model, "position", place));
  }
}

} // namespace

request_series::request_series(prometheus::Registry& registry, const label_map& model, statistic_checks& checks)
    : checks_(checks),
      cached_tokens_(add_counter(registry, "troupe_cached_tokens_total", "Prompt tokens found in the prefix cache.", model)),
      prompt_tokens_(add_counter(registry, "troupe_prompt_tokens_total", "Prompt tokens, cached ones included.", model)),
      generation_tokens_(add_counter(registry, "troupe_generation_tokens_total", "Tokens generated.", model)),
      time_to_first_token_(
          stage(registry, model, "troupe_time_to_first_token_seconds", "Arrival to first token, queue included; once per request.")),
      inter_token_latency_(stage(registry, model, "troupe_inter_token_latency_seconds", "Time between two outputs of one choice.")),
      time_per_output_token_(
          stage(registry, model, "troupe_time_per_output_token_seconds", "Decode time over output tokens less one, per request.")),
      queue_time_(stage(registry, model, "troupe_request_queue_seconds", "Arrival to first scheduled.")),
      prefill_time_(stage(registry, model, "troupe_request_prefill_seconds", "First scheduled to first token.")),
      decode_time_(stage(registry, model, "troupe_request_decode_seconds", "First token to last.")),
      request_time_(stage(registry, model, "troupe_request_seconds", "Arrival to last token, of requests that ended by stop or length.")) {
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    requests_[i] = &add_counter(registry, "troupe_requests_total", "Requests that ended, by how they ended.",
                                with_label(model, "outcome", std::string(outcomes[i])));
  }
  add_by_place(registry, model, "troupe_spec_accepted_tokens_total", "Drafts that were drawn, by position in their run.", accepted_);
  add_by_place(registry, model, "troupe_spec_drafted_tokens_total", "Drafts that were verified, by position in their run.", drafted_);
}

void request_series::finished(outcome how, const request_times& times) noexcept {
  auto index = static_cast<std::size_t>(how);
  if (index >= outcomes.size()) {
    checks_.bad(statistic::outcome_label, "not an outcome, counted as failed");
    index = static_cast<std::size_t>(outcome::failed);
  }
  requests_[index]->Increment();
  const auto observe = [](prometheus::Histogram& where, double seconds) {
    if (seconds > 0) where.Observe(seconds);
  };
  const double decode = checks_.seconds(times.decode_ns);
  observe(queue_time_, checks_.seconds(times.queue_ns));
  observe(prefill_time_, checks_.seconds(times.prefill_ns));
  observe(decode_time_, decode);
  if (how == outcome::stop || how == outcome::length) observe(request_time_, checks_.seconds(times.total_ns));
  if (times.output_tokens >= 2) observe(time_per_output_token_, decode / static_cast<double>(times.output_tokens - 1));
}

void request_series::first_token(std::uint64_t since_arrival_ns) noexcept {
  time_to_first_token_.Observe(checks_.seconds(since_arrival_ns));
}

void request_series::token_gap(std::uint64_t ns) noexcept { inter_token_latency_.Observe(checks_.seconds(ns)); }

void request_series::tokens(std::int64_t prompt, std::int64_t generated, std::int64_t cached) noexcept {
  const auto prompt_step = checks_.checked(statistic::prompt_tokens, prompt);
  if (prompt_step > 0) {
    prompt_tokens_.Increment(static_cast<double>(prompt_step));
    prompt_total_ += static_cast<std::uint64_t>(prompt_step); // after the counter: cached tokens may follow it up to here
  }
  const auto cached_step = admit_cached(static_cast<std::uint64_t>(checks_.checked(statistic::cached_tokens, cached)));
  cached_tokens_.Increment(static_cast<double>(cached_step));
  generation_tokens_.Increment(static_cast<double>(checks_.checked(statistic::generation_tokens, generated)));
}

// As much of `wanted` as keeps the sum of cached tokens at or below that of prompt tokens.
std::uint64_t request_series::admit_cached(std::uint64_t wanted) noexcept {
  if (wanted == 0) return 0;
  std::uint64_t before = cached_total_, admitted = 0;
  do {
    admitted = std::min(wanted, prompt_total_ - before);
  } while (!cached_total_.compare_exchange_weak(before, before + admitted));
  if (admitted < wanted) checks_.bad(statistic::cached_tokens, "more than all prompts have");
  return admitted;
}

void request_series::drafts(std::size_t place, std::int64_t drafted, std::int64_t accepted) noexcept {
  const std::size_t i = std::min(place, draft_places - 1);
  drafted_[i]->Increment(static_cast<double>(checks_.checked(statistic::drafts, drafted)));
  accepted_[i]->Increment(static_cast<double>(checks_.checked(statistic::drafts, accepted)));
}

} // namespace troupe::telemetry
