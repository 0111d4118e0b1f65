// A group of GPUs under a bench on a bare executor: each rank's process runs the same bench, and so makes the same plans.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "actors/child_process.hpp"
#include "apps/engine_options.hpp"
#include "core/step.hpp"
#include "core/value.hpp"
#include "models/checkpoint.hpp"
#include "models/rank_context.hpp"

namespace CLI {
class App;
}

namespace troupe::apps {

// Which rank of the group this process is, as rank 0 tells those that it starts.
struct bench_place {
  std::int32_t rank = 0;
  std::filesystem::path report; // where a rank that is not the first leaves what it measured
};

// Flags that are not shown: they are for the processes that bench_ranks starts.
void add_place_flags(CLI::App& command, bench_place& place);

// For rank 0 to read. Throws std::runtime_error.
void leave_report(const bench_place& place, const value& figures);

// The processes of the other ranks, which end with this.
class bench_ranks {
 public:
  bench_ranks() = default;
  ~bench_ranks();
  bench_ranks(const bench_ranks&) = delete;
  bench_ranks& operator=(const bench_ranks&) = delete;

  // The executor of this process. Of a group on CPUs it is the whole group; of a group on GPUs it is one rank, and rank 0 starts the others
  // with its own command line. They must go the same way from here on. Throws load_error and std::runtime_error.
  std::unique_ptr<step_executor> make_executor(engine_options options, const bench_place& place,
                                               const std::shared_ptr<const checkpoint>& source);

  // The same for a bench without an executor: this process's place in a tensor parallel group of `size`, once all have come. Throws
  // collective_error and std::runtime_error.
  rank_context join(std::int32_t size, const bench_place& place);

  // What the other ranks left, in their order; waits for them for as long as `patience`. A rank that left nothing in time has no place.
  value_array reports(std::chrono::milliseconds patience) const;

  std::int32_t gpus() const { return 1 + static_cast<std::int32_t>(others_.size()); } // that work together, of which each has a process

 private:
  void start(std::int32_t ranks, const std::string& rendezvous);

  std::filesystem::path folder_; // of reports; empty: there are no others
  std::vector<std::unique_ptr<actors::child_process>> others_;
};

} // namespace troupe::apps
