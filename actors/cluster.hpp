// A cluster as its two sides see it: the head, which serves, and nodes, which offer their devices to it. Hides CAF.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace troupe::actors {

// What a node says of itself.
struct node_description {
  std::string name;               // unique in the cluster: letters, digits, '.', '_', '-'; 63 at most
  std::uint64_t instance = 0;     // random, of this run of the program
  std::string address;            // of the interface that its ranks talk through, numeric
  bool loopback = false;          // which other machines cannot reach
  std::uint64_t memory_bytes = 0; // free when it joined
};

// What a node must know to run ranks.
struct head_description {
  std::string model;                  // path on the head
  std::string device;                 // "cpu" or "cuda": the same on all machines
  std::string fingerprint;            // of the checkpoint: a node's must be the same
  std::vector<std::string> arguments; // a worker's flags, without the model and what each machine says itself
};

// -- the head -----------------------------------------------------------------------------------------------------------------------

// Groups are placed on the slots of the head and of nodes that have joined, and wait where there are too few.
struct cluster_options {
  std::int32_t local_slots = 0; // of the head; each needs an entry of serving_options::slot_arguments
  std::int32_t least_nodes = 0; // no group is placed before so many nodes have joined
  bool loopback = true;         // the head's interface is: nodes' must be alike
  head_description head;
  // The doors of transport/cluster: where nodes that join are led, and which ports ranks may come to.
  std::function<void(std::uint16_t port)> lead_join_to;
  std::function<void(std::uint16_t port)> open_port, close_port;
  // Hears, from any thread, what is missing where a group waits for room, and of an empty text when none waits any more; may be empty. Must
  // not call the serving side.
  std::function<void(const std::string& for_what)> groups_wait;
};

// -- a node -------------------------------------------------------------------------------------------------------------------------

// How the rank of each slot is started: command, then the slot's arguments, then "--parent-port N".
struct worker_plan {
  std::vector<std::string> command;
  std::string preamble; // as in serving_options
  std::vector<std::vector<std::string>> slot_arguments;
  std::string device; // for the head's log: "CPU, 8 cores", "2 GPUs"
};

struct node_parts {
  node_description about;
  // What this machine does for that head. Throws std::exception where it cannot, with a sentence that says why.
  std::function<worker_plan(const head_description&)> prepare;
  // A port here that leads to a port of the head.
  std::function<std::uint16_t(std::uint16_t head_port)> lead_to;
  std::function<void(const std::string& line)> log;
};

enum class membership_end : std::uint8_t {
  refused, // by either side, for good
  passing, // refused for now
  lost,    // the head is gone, or cut off
  left,    // in order
};

struct membership_result {
  membership_end how = membership_end::lost;
  std::string reason; // of a refusal
};

// One stay in a cluster. All ranks end with it.
class node_membership {
 public:
  // `port`: on loopback, leads to the head. Throws std::runtime_error when nobody answers there.
  static std::unique_ptr<node_membership> join(std::uint16_t port, node_parts parts);
  virtual ~node_membership() = default;

  // Asks the head to move its ranks elsewhere; the stay then ends as `left`. While the program is replaced the head does that first.
  virtual void leave() = 0;
  // The ranks here are to run `program` (worker_protocol.hpp) in place of worker_plan::command's first word, as of
  // serving::replace_program. The failure says why they run the program of before; none: later ones run the new one, too, until the stay
  // ends. Waits for all that, at most until the stay ends; for any thread.
  virtual std::optional<std::string> replace_program(const std::string& program, std::chrono::milliseconds start_deadline,
                                                     const std::function<void(const std::string&)>& tell) = 0;
  // Ends the stay at once, and so whatever waits in replace_program.
  virtual void end() = 0;
  virtual std::optional<membership_result> result() const = 0; // none: it goes on
  virtual std::int32_t ranks() const = 0;                      // that run here now
};

} // namespace troupe::actors
