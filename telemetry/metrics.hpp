// troupe_* metrics (docs/metrics.md lists them). Base units; labels from closed sets. Thread-safe; never throws into a caller.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "core/collective_fault.hpp"
#include "telemetry/group_shape.hpp"

namespace troupe::telemetry {

// How a request ended, as a label value.
enum class outcome : std::uint8_t { stop, length, cancelled, rejected, failed };

// Times of one ended request in nanoseconds; zero where the stage was never reached (it is then not observed).
struct request_times {
  std::uint64_t queue_ns = 0;      // arrival to first scheduled
  std::uint64_t prefill_ns = 0;    // first scheduled to first token
  std::uint64_t decode_ns = 0;     // first token to last
  std::uint64_t total_ns = 0;      // arrival to last
  std::uint64_t output_tokens = 0; // time per output token = decode / (output_tokens - 1)
};

// used + cached + free = total: a cached block holds a reusable prefix that no request refers to.
struct engine_state {
  std::int64_t running = 0;
  std::int64_t waiting = 0;
  std::int64_t kv_blocks_total = 0;
  std::int64_t kv_blocks_used = 0;
  std::int64_t kv_blocks_cached = 0;
  bool speculating = false;
};

// A machine of a cluster.
struct node_figures {
  bool up = false;
  std::int32_t slots = 0;
  std::int32_t ranks = 0; // slots that a group holds
  bool leaving = false;   // it has asked to: nothing new is placed there
  bool missing = false;   // it went without having asked, and is not back
};
inline constexpr std::string_view head_machine = "head"; // by this name; no node may have it

// Places in a run of drafts that are counted apart; the last one stands for all further ones, too.
constexpr std::size_t draft_places = 8;

// Every series exists from the start, at 0. A statistic that cannot be (a negative step, a duration of more than 292 years,
// more cached tokens than prompt tokens) is clamped, counted in troupe_invalid_statistics_total, and logged once per kind.
class metrics {
 public:
  using log_function = std::function<void(std::string_view line)>;

  // `log` gets one line without a newline; empty: it goes to stderr.
  metrics(std::string_view served_model, std::string_view version, log_function log = {}, group_shape groups = {});
  ~metrics();
  metrics(const metrics&) = delete;
  metrics& operator=(const metrics&) = delete;

  // The end-to-end time is observed for stop and length alone: other requests ended before their work did.
  void request_finished(outcome how, const request_times& times) noexcept;
  void first_token(std::uint64_t since_arrival_ns) noexcept; // once per request
  void token_gap(std::uint64_t ns) noexcept;                 // between two outputs of one choice
  // Steps of the three counters. Cached tokens are reported with the prompt that they are part of, or after it.
  void tokens(std::int64_t prompt, std::int64_t generated, std::int64_t cached) noexcept;
  void step(std::uint64_t duration_ns, std::int64_t sequences, std::int64_t batched_tokens) noexcept;
  void preempted(std::int64_t count) noexcept;
  // Steps of the counters of drafts that were verified at `place` (from 0) of their runs.
  void drafts(std::size_t place, std::int64_t drafted, std::int64_t accepted) noexcept;
  // What the keeper of weights holds now, and steps of the counters of what was left with it and taken from it.
  void kept_weights(std::uint64_t bytes, std::uint64_t filled, std::uint64_t mapped) noexcept;
  void keeper_restarted() noexcept;
  void numeric_fault() noexcept;
  // A replica or rank outside the shape is a bad statistic.
  void rank_step(std::int32_t replica, std::int32_t rank, const rank_times& times) noexcept;
  void collective_failed(std::int32_t replica, collective_fault fault) noexcept;
  void group_restarted(std::int32_t replica) noexcept;
  void start_failed(std::int32_t replica) noexcept; // of a group that was there before
  void set_group(std::int32_t replica, bool up, std::int64_t epoch) noexcept;
  void set_group_waiting(std::int32_t replica, bool waiting) noexcept; // for slots
  void moved(std::int64_t sequences) noexcept;                         // to another replica
  // `name`: the operator's; not a client's.
  void set_node(const std::string& name, const node_figures& now) noexcept;
  void node_lost() noexcept;
  void node_refused() noexcept;
  void set_engine(std::int32_t replica, const engine_state& now) noexcept;
  void set_ready(bool ready) noexcept;
  // `route` must be one of the known routes, anything else counts as "other"; status as its class ("2xx").
  void http_request(std::string_view route, int status) noexcept;
  void slow_reader_dropped() noexcept;

  // Prometheus text exposition 0.0.4, families sorted by name; empty when memory ran out.
  std::string render() const noexcept;

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

} // namespace troupe::telemetry
