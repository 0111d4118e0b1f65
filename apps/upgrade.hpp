// `troupe upgrade` and `troupe node --upgrade`: what may be asked of a running server or node, who does it, and who asks.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "apps/admin/admin_socket.hpp"

namespace CLI {
class App;
}

namespace troupe::apps {

// A process that can give its device processes another program.
struct upgrade_host {
  std::string whose; // "the device processes": who runs the program
  std::string own;   // the path of its own program, which is what an upgrade takes unless it names another
  // As of serving::replace_program.
  std::function<std::optional<std::string>(const std::string& program, std::chrono::milliseconds start_deadline,
                                           const admin_socket::tell_fn& tell)>
      replace;
};

// Listens on behalf of what `host` calls, which must outlive what is returned; null, with a line in the log, where the name is taken.
std::unique_ptr<admin_socket> listen_for_upgrades(upgrade_host host);

// Where this process's program lay when it was called. To be asked before the file can have been replaced.
std::string program_path();

struct upgrade_flags {
  pid_t pid = 0; // 0: not given
  std::filesystem::path program;
  int start_deadline_s = 60;
};

// --program and --start-deadline.
void add_upgrade_flags(CLI::App& command, upgrade_flags& flags);
// Asks the process that the flags name, and prints what it says. Returns the exit code.
int ask_for_upgrade(const upgrade_flags& flags, const char* command);

} // namespace troupe::apps
