// A child process that is always reaped, and never outlives this object.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace troupe::actors {

// The child gets its own process group (a Ctrl-C in the terminal is the parent's to handle), no file descriptor but 0, 1 and 2, default
// signals, and a pipe as its standard input: it holds a few lines to begin with, and closes when this process ends, however it ends.
class child_process {
 public:
  // `on_change` is called from a watching thread, with a status as of waitpid: each time the process is stopped (SIGSTOP), and once when it
  // has ended. It then stays a zombie until it is reaped by the destructor, so its id cannot come to name another. Throws
  // std::runtime_error when it cannot be started.
  // `first_line` (short, no newline at its end, but maybe within) is for what must not be seen in a command line.
  // `standard_output`: a file of this process; none: as this process's own.
  child_process(const std::vector<std::string>& command, const std::string& first_line, std::function<void(int status)> on_change,
                std::optional<int> standard_output = {});
  ~child_process(); // kills and reaps
  child_process(const child_process&) = delete;
  child_process& operator=(const child_process&) = delete;

  pid_t pid() const { return pid_; }
  void kill() const; // SIGKILL
  // One more line on its standard input, short. A child that has ended, or reads nothing for long, does not get it: its end is told anyway.
  void tell(const std::string& line) const;

 private:
  void watch(const std::function<void(int)>& on_change) const;

  pid_t pid_ = -1;
  int keep_alive_ = -1; // our end of the child's standard input
  std::thread watcher_;
};

// "exit code 3", "signal 9 (Killed)".
std::string describe_status(int status);

} // namespace troupe::actors
