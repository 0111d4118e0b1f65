#include "actors/worker_process.hpp"

#include <caf/send.hpp>
#include <utility>

namespace troupe::actors {

std::unique_ptr<child_process> start_worker_process(worker_start start, std::function<void(int)> on_change) {
  auto command = std::move(start.command);
  command.insert(command.end(), start.arguments.begin(), start.arguments.end());
  command.insert(command.end(), {"--parent-port", std::to_string(start.port)});
  return std::make_unique<child_process>(command, start.preamble + start.token, std::move(on_change));
}

namespace {

class local_worker final : public standby_process {
 public:
  explicit local_worker(std::unique_ptr<child_process> child) : child_(std::move(child)) {}
  void kill() override { child_->kill(); }
  int pid() const override { return child_->pid(); }
  void call(std::uint16_t port, const std::string& token) override { child_->tell(std::to_string(port) + " " + token); }

 private:
  std::unique_ptr<child_process> child_;
};

class remote_worker final : public worker_process {
 public:
  remote_worker(cluster_actor cluster, start_worker start)
      : cluster_(std::move(cluster)), end_{start.node, start.replica, start.rank, start.generation} {
    caf::anon_send(cluster_, std::move(start));
  }
  ~remote_worker() override { remote_worker::kill(); }
  void kill() override { caf::anon_send(cluster_, end_); }
  int pid() const override { return 0; }

 private:
  cluster_actor cluster_;
  stop_worker end_;
};

} // namespace

std::unique_ptr<worker_process> make_local_worker(worker_start start, std::function<void(int)> on_change) {
  return std::make_unique<local_worker>(start_worker_process(std::move(start), std::move(on_change)));
}

std::unique_ptr<standby_process> make_standby(worker_start start, std::int32_t replica, std::int32_t rank,
                                              std::function<void(int)> on_change) {
  auto command = std::move(start.command);
  command.insert(command.end(), {"--stand-by-for", std::to_string(replica) + ":" + std::to_string(rank)});
  if (!start.preamble.empty()) start.preamble.pop_back(); // the last line's end comes with the first line
  return std::make_unique<local_worker>(std::make_unique<child_process>(command, start.preamble, std::move(on_change)));
}

std::unique_ptr<worker_process> make_remote_worker(cluster_actor cluster, start_worker start) {
  return std::make_unique<remote_worker>(std::move(cluster), std::move(start));
}

} // namespace troupe::actors
