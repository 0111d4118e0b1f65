// The serving side as one object: starts the actors, supervises devices, and is a request_handler for transport. Hides CAF.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/service.hpp"
#include "core/step.hpp"
#include "scheduler/scheduler.hpp"
#include "telemetry/metrics.hpp"
#include "telemetry/timeline.hpp"
#include "tokenizer/chat_template.hpp"
#include "tokenizer/tokenizer.hpp"

namespace troupe::actors {

using executor_factory = std::function<std::unique_ptr<step_executor>()>;

struct serving_options {
  std::vector<std::string> served_names;
  std::int64_t created = 0;
  std::vector<token_id> eos_tokens;
  std::int32_t max_queue = 1024; // choices waiting; beyond it: 429
  std::int32_t tokenizer_workers = 2;
  std::int32_t plans_in_flight = 2;
  bool prefix_caching = true;
  speculation_config speculation; // needs a device that verifies, and for draft_source::model one that proposes: else start() throws
  std::optional<std::chrono::milliseconds> max_predicted_ttft; // what would have its first token later gets 429; none: no bound
  // Non-empty: the device runs in a child process started with this command line plus "--parent-port N".
  std::vector<std::string> worker_command;
  std::string worker_preamble; // what the child finds on its standard input before its token: whole lines, or nothing
  std::chrono::milliseconds step_deadline{120'000};  // a plan without a result for this long: the device is lost
  std::chrono::milliseconds start_deadline{300'000}; // of a device's start
  std::int32_t max_restarts = 10;                    // within restart_period; beyond it the serving side is not live
  std::chrono::seconds restart_period{60};
};

struct serving_parts {
  std::shared_ptr<const tokenizer> tokens;
  std::shared_ptr<const chat_template> templates; // may be null: chat is then a 400
  std::string bos_token, eos_token;               // template variables
  executor_factory make_executor;                 // called on the device's own thread
  std::shared_ptr<telemetry::metrics> metrics;
  std::shared_ptr<telemetry::timeline> timeline; // null: nothing is traced
  std::shared_ptr<void> companion;               // lives as long as the serving side; may be null
};

class serving : public request_handler {
 public:
  // Returns once the first device is ready; throws load_error or std::runtime_error when it cannot be.
  static std::unique_ptr<serving> start(serving_options options, serving_parts parts);

  // Refuses new requests from here on.
  virtual void drain() = 0;
  virtual std::size_t active_requests() const = 0;
  // Ends every request with an error, stops devices and children; the destructor does it too.
  virtual void stop() = 0;
  // Process id of the device's child process; 0 when it lives in this process. For tests and logs.
  virtual int device_pid() const = 0;
};

// The child's side of worker_command: serves one device actor until the parent goes away. Returns the exit code.
// Standard input must be the parent's pipe: its first line proves to the parent that this is the child it started, its end means that
// the parent is gone.
int run_device_worker(std::uint16_t parent_port, const executor_factory& make_executor);

} // namespace troupe::actors
