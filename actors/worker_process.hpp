// The process of a rank, wherever it runs, and the one way in which such a process is started.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "actors/child_process.hpp"
#include "actors/protocol.hpp"

namespace troupe::actors {

// What the process gets to know: its command line is `command`, `arguments` and the port, its standard input begins with `preamble` and
// `token`.
struct worker_start {
  std::vector<std::string> command;
  std::vector<std::string> arguments; // of its slot
  std::string preamble;
  std::uint16_t port = 0; // of its registrar, on loopback
  std::string token;
};

// Throws std::runtime_error; see child_process.
std::unique_ptr<child_process> start_worker_process(worker_start start, std::function<void(int status)> on_change);

// Told to go when it is destroyed.
class worker_process {
 public:
  virtual ~worker_process() = default;
  virtual void kill() = 0;
  virtual int pid() const = 0; // 0: on another machine
};

// Of this process. It is reaped when this is destroyed.
std::unique_ptr<worker_process> make_local_worker(worker_start start, std::function<void(int status)> on_change);

// A process that has made itself ready for a rank and waits to be called. Its command line has "--stand-by-for REPLICA:RANK" in place of
// the port; its standard input begins with the preamble.
class standby_process : public worker_process {
 public:
  // From here on it is what make_local_worker() would have started.
  virtual void call(std::uint16_t port, const std::string& token) = 0;
};
std::unique_ptr<standby_process> make_standby(worker_start start, std::int32_t replica, std::int32_t rank,
                                              std::function<void(int status)> on_change);

// On a node; its end is told by a worker_changed.
std::unique_ptr<worker_process> make_remote_worker(cluster_actor cluster, start_worker start);

} // namespace troupe::actors
