// Where a running server is told what to do by its own user: a Unix socket in the abstract namespace, so that there is no file to guard, to
// clean up or to find the directory of. Its name follows from the server's process id. The kernel says whose processes the two ends are,
// and each end looks.
//
//   client: one packet of text, the command              server: packets of text, "note ..", then one "done .." or "failed .."
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "device/keeper/file_descriptor.hpp"

namespace troupe::apps {

// Of process `pid`.
std::string admin_name(pid_t pid);
// This user's processes `troupe SUBCOMMAND ..` that listen in this network namespace, in order.
std::vector<pid_t> admin_processes(std::string_view subcommand);

class admin_socket {
 public:
  using tell_fn = std::function<void(const std::string&)>;
  struct outcome {
    bool done = false;
    std::string text;
  };
  // Called on the socket's thread, one command at a time; `tell` passes notes to the client.
  using handler = std::function<outcome(const std::string& command, const tell_fn& tell)>;

  // Throws std::runtime_error when it cannot listen.
  admin_socket(const std::string& name, handler handle);

 private:
  void serve(const std::stop_token& stop) const;
  void answer(int client) const;

  keeper::file_descriptor listening_;
  handler handle_;
  std::jthread thread_; // ends first, after the command that it works on
};

// Sends `command` to process `pid` and waits for its outcome, however long that takes; `tell` hears the notes. Failed, too, when there is
// no such server of this user, or it ends meanwhile.
admin_socket::outcome ask_server(pid_t pid, const std::string& command, const admin_socket::tell_fn& tell);

} // namespace troupe::apps
