#include "apps/admin/upgrade_command.hpp"

#include <charconv>
#include <sstream>

#include "actors/serving.hpp"

namespace troupe::apps {

std::string to_text(const upgrade_command& command) {
  return "upgrade " + std::to_string(command.start_deadline.count()) + " " + command.path;
}

std::variant<upgrade_command, std::string> parse_upgrade_command(const std::string& text) {
  constexpr auto most = std::chrono::duration_cast<std::chrono::seconds>(actors::longest_start_deadline).count();
  std::istringstream words(text);
  std::string verb, number;
  if (!(words >> verb >> number) || verb != "upgrade") return "this process does not know the command";
  std::int64_t seconds = 0;
  const auto [end, failed] = std::from_chars(number.data(), number.data() + number.size(), seconds);
  if (failed != std::errc() || end != number.data() + number.size() || seconds < 1 || seconds > most) {
    return "upgrade: the deadline of a start is 1 to " + std::to_string(most) + " seconds, not \"" + number.substr(0, 40) + "\"";
  }
  upgrade_command command{std::chrono::seconds(seconds), {}};
  std::getline(words >> std::ws, command.path);
  return command;
}

} // namespace troupe::apps
