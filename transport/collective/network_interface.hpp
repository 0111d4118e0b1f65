// Which of this machine's interfaces a group talks through. It is always chosen, never guessed.
#pragma once

#include <string>

namespace troupe {

struct network_interface {
  std::string name;    // "eth0"
  std::string address; // numeric
  bool loopback = false;
};

// `chosen`: an interface's name ("eth0"), whose first address is taken (v4 before v6, link-local never), or an address of this machine.
// across_nodes: the group has ranks on other machines, which loopback cannot reach. Throws std::invalid_argument that says what is wrong:
// no such interface, a wildcard, loopback for a group across nodes; with the interfaces that there are.
network_interface choose_interface(const std::string& chosen, bool across_nodes);

} // namespace troupe
