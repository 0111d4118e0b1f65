// A node's side of a cluster: joins, starts and ends the processes of ranks as the head says, and tells it of their ends.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actors/actor_pointer.hpp"
#include "actors/child_process.hpp"
#include "actors/cluster.hpp"
#include "actors/program_list.hpp"
#include "actors/protocol.hpp"

namespace troupe::actors {

// What others see of the node's actor. Thread-safe.
class membership_board {
 public:
  using tell_fn = std::function<void(const std::string&)>;

  void end(membership_result result); // the first one stays
  std::optional<membership_result> result() const;
  std::atomic<std::int32_t> ranks{0};

  // A change of the program: `ask` makes the actor begin, which then writes here what it hears. Waits for the end of the change or of the
  // stay: none, or the failure. One at a time; the next one waits.
  std::optional<std::string> await_change(const std::function<void()>& ask, const tell_fn& tell);
  void note_change(std::string text);
  void end_change(std::string failure); // empty: it is done

 private:
  mutable std::mutex mutex_;
  std::condition_variable news_;
  std::optional<membership_result> result_;
  std::mutex one_change_;
  std::vector<std::string> notes_;
  std::optional<std::string> change_; // as of end_change; none: it goes on
};

struct node_state {
  static constexpr const char* name = "node";

  struct worker {
    std::uint64_t generation = 0;
    std::int32_t slot = 0;
    std::unique_ptr<child_process> child;
  };
  using rank_key = std::pair<std::int32_t, std::int32_t>; // replica, rank

  node_parts parts;
  cluster_actor cluster;
  std::shared_ptr<membership_board> board;
  std::optional<worker_plan> plan;      // none before the head's welcome
  std::optional<program_list> programs; // the first is the plan's
  program_number program = 0;           // that all ranks here run
  program_number offered = 0;           // that they may run soon
  std::map<rank_key, worker> workers;
};

// Ends, and all ranks with it, when the cluster's actor does, or is not heard of for a second.
node_actor::behavior_type run_node(actor_pointer<node_actor, node_state> self, node_parts parts, cluster_actor cluster,
                                   std::shared_ptr<membership_board> board);

} // namespace troupe::actors
