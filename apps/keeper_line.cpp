#include "apps/keeper_line.hpp"

#include <unistd.h>

#include <stdexcept>
#include <string>

namespace troupe::apps {

keeper::address read_keeper_line() {
  std::string line;
  for (char c = 0; line.size() < 256 && read(STDIN_FILENO, &c, 1) == 1 && c != '\n';) line += c;
  const std::size_t space = line.find(' ');
  if (space == std::string::npos) throw std::runtime_error("standard input does not begin with a keeper's name and token");
  return {line.substr(0, space), line.substr(space + 1)};
}

} // namespace troupe::apps
