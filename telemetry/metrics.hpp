// troupe_* metrics (docs/metrics.md lists them). Base units; labels from closed sets. Thread-safe; never throws into a caller.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace troupe::telemetry {

// How a request ended, as a label value.
enum class outcome : std::uint8_t { stop, length, cancelled, rejected, failed };

// Times of one ended request in nanoseconds; zero where the stage was never reached.
struct request_times {
  std::uint64_t queue_ns = 0;   // arrival to first scheduled
  std::uint64_t prefill_ns = 0; // first scheduled to first token
  std::uint64_t decode_ns = 0;  // first token to last
  std::uint64_t total_ns = 0;   // arrival to last
  std::uint64_t output_tokens = 0; // time per output token = decode / (output_tokens - 1)
};

struct engine_state {
  std::int64_t running = 0;
  std::int64_t waiting = 0;
  std::int64_t kv_blocks_total = 0;
  std::int64_t kv_blocks_used = 0;
  std::int64_t kv_blocks_cached = 0;
};

class metrics {
 public:
  explicit metrics(std::string_view served_model, std::string_view version);
  ~metrics();

  void request_finished(outcome how, const request_times& times);
  void first_token(std::uint64_t since_arrival_ns); // once per request
  void token_gap(std::uint64_t ns);                 // between two outputs of one choice
  void tokens(std::int64_t prompt, std::int64_t generated, std::int64_t cached); // negative steps are logged, clamped to 0
  void step(std::uint64_t duration_ns, std::int64_t sequences, std::int64_t batched_tokens);
  void preempted(std::int64_t count);
  void device_restarted();
  void numeric_fault();
  void set_engine(const engine_state& now);
  void set_ready(bool ready);
  // `route` must be one of the known routes, anything else counts as "other"; status as its class ("2xx").
  void http_request(std::string_view route, int status);
  void slow_reader_dropped();

  // Prometheus text exposition 0.0.4.
  std::string render() const;

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

} // namespace troupe::telemetry
