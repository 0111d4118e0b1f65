// What `troupe upgrade` and `troupe node --upgrade` say over the admin socket: "upgrade SECONDS PATH".
#pragma once

#include <chrono>
#include <string>
#include <variant>

namespace troupe::apps {

struct upgrade_command {
  std::chrono::seconds start_deadline{60}; // 1 s to actors::longest_start_deadline
  std::string path;                        // absolute; empty: where the program of the process that is asked lay when it started
};

std::string to_text(const upgrade_command& command);
// Or what is wrong with it.
std::variant<upgrade_command, std::string> parse_upgrade_command(const std::string& text);

} // namespace troupe::apps
