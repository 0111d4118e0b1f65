// The serving side as one object: starts the actors, supervises device groups, and is a request_handler for transport. Hides CAF.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/cluster.hpp"
#include "core/service.hpp"
#include "core/step.hpp"
#include "scheduler/scheduler.hpp"
#include "telemetry/metrics.hpp"
#include "telemetry/timeline.hpp"
#include "tokenizer/chat_template.hpp"
#include "tokenizer/tokenizer.hpp"

namespace troupe::actors {

// What a change of the program may allow its ranks to start, at most.
inline constexpr std::chrono::milliseconds longest_start_deadline = std::chrono::hours(24);

// Which rank of which group an executor is made for. A group is formed anew after each loss.
struct rank_start {
  std::int32_t replica = 0;
  std::int32_t rank = 0;
  std::int32_t size = 1;        // ranks of the group
  std::uint64_t generation = 1; // counts the group's formations in this serving process
  std::string rendezvous;       // what rank 0 published; empty for rank 0 itself
  // KV blocks of the group when it was first formed: the ranks must have just as many again, whatever memory is free now. None: the first.
  std::optional<std::int32_t> num_blocks{};
  // The group's ranks of before were killed or let go, so what a keeper has of their KV is as it was. False: it may be anything.
  bool kv_usable = false;
};

// Rank 0 calls it once, from within the factory, before it waits for any other rank: these start with what it says. Opaque to the actors.
using publish_rendezvous = std::function<void(std::string)>;

// Called on the rank's own thread. An executor whose destruction is a loss to others must make their calls return (a communicator aborts):
// ranks that are threads cannot be killed.
using executor_factory = std::function<std::unique_ptr<step_executor>(const rank_start&, const publish_rendezvous&)>;

struct serving_options {
  std::vector<std::string> served_names;
  std::int64_t created = 0;
  std::vector<token_id> eos_tokens;
  std::int32_t max_queue = 1024; // choices waiting; beyond it: 429
  std::int32_t tokenizer_workers = 2;
  std::int32_t replicas = 1;   // groups, each with a scheduler of its own behind one gateway
  std::int32_t group_size = 1; // ranks of a group: all get every plan
  std::int32_t leader = 0;     // the rank whose results have outputs
  std::int32_t stages = 1;     // of a group's pipeline
  std::int32_t plans_in_flight = 2;
  bool prefix_caching = true;
  speculation_config speculation; // needs a device that verifies, and for draft_source::model one that proposes: else start() throws
  std::optional<std::chrono::milliseconds> max_predicted_ttft; // what would have its first token later gets 429; none: no bound
  // Non-empty: each rank runs in a child process started with this command line plus "--parent-port N".
  std::vector<std::string> worker_command;
  std::string worker_preamble; // what the child finds on its standard input before its token: whole lines, or nothing
  bool standby = false;        // beside each rank's process one waits that has made itself ready to take its place; not in a cluster
  std::vector<std::vector<std::string>> slot_arguments; // in a cluster: what stands behind worker_command, by slot of this machine
  std::chrono::milliseconds step_deadline{120'000};     // a plan without a result for this long: the group is lost
  std::chrono::milliseconds rank_deadline{1'500};       // so long may a rank's answer come after the first one's, at least: a rank is late
  std::chrono::milliseconds start_deadline{300'000};    // of a group's start
  std::chrono::milliseconds move_after{2'000};          // a group is not back by then: its requests go to another replica that is up
  std::int32_t max_restarts = 10;                       // of a group within restart_period; beyond it the group is given up
  std::chrono::seconds restart_period{60};
};

enum class log_level : std::uint8_t { info, warning };

struct serving_parts {
  std::shared_ptr<const tokenizer> tokens;
  std::shared_ptr<const chat_template> templates; // may be null: chat is then a 400
  std::string bos_token, eos_token;               // template variables
  executor_factory make_executor;
  std::shared_ptr<telemetry::metrics> metrics;
  std::shared_ptr<telemetry::timeline> timeline; // null: nothing is traced
  std::shared_ptr<void> companion;               // lives as long as the serving side; may be null
  std::optional<cluster_options> cluster;        // groups are placed on several machines; needs worker_command
  // What becomes of groups and nodes, as a warning where something is amiss; may be empty.
  std::function<void(log_level level, const std::string& line)> log;
};

class serving : public request_handler {
 public:
  // Returns once every group is up, which in a cluster may take until enough nodes have joined; throws load_error or std::runtime_error
  // when one cannot be.
  static std::unique_ptr<serving> start(serving_options options, serving_parts parts);

  // Refuses new requests from here on.
  virtual void drain() = 0;
  virtual std::size_t active_requests() const = 0;
  // Ends every request with an error, stops devices and children; the destructor does it too.
  virtual void stop() = 0;
  // The device processes of this machine are to run `program` (worker_protocol.hpp) in place of worker_command's first word. One group
  // after another lets the steps in flight end, parts with its ranks and starts new ones, up within `start_deadline`; its requests wait
  // meanwhile, and none is lost. What does not start, or fails within its first seconds, is undone in all groups: the failure, after which
  // they run the program of before. `tell` hears what is done. Waits for all that, and before it for other changes that are under way; for
  // any thread.
  virtual std::optional<std::string> replace_program(const std::string& program, std::chrono::milliseconds start_deadline,
                                                     const std::function<void(const std::string&)>& tell) = 0;
  // Process id of a rank's child process; 0 when there is none now. For tests and logs.
  virtual int device_pid(std::int32_t replica = 0, std::int32_t rank = 0) const = 0;
};

// The child's side of worker_command. Standard input must be the parent's pipe, and its end means that the parent is gone.
// To begin with: from here on the parent decides when this process ends, and no signal to the whole service does.
void leave_signals_to_parent();

// Where the parent is to be found, and what proves to it that this is the child it started.
struct worker_call {
  std::uint16_t port = 0;
  std::string token;
};
// From the next line of standard input that is not empty, which has the token, and before it the port where `port` is none. Waits; ends the
// process when the parent is gone.
worker_call await_call(std::optional<std::uint16_t> port);

// Serves one device actor until the parent goes away; the parent's first message says which rank it is. Returns the exit code.
int run_device_worker(const worker_call& parent, const executor_factory& make_executor);

} // namespace troupe::actors
