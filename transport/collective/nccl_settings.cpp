#include "transport/collective/nccl_settings.hpp"

#include <sstream>
#include <stdexcept>

#include "transport/collective/network_interface.hpp"

namespace troupe {
namespace {

constexpr const char* kMulticast = "NCCL_NVLS_ENABLE";
constexpr const char* kInterface = "NCCL_SOCKET_IFNAME";
constexpr const char *kPeersOff = "NCCL_P2P_DISABLE", *kPeerLevel = "NCCL_P2P_LEVEL";

// NCCL's syntax: names or their beginnings, apart by commas; "=" before the list: whole names; "^": all but these.
bool chooses_loopback(const std::string& list) {
  if (list.empty() || list[0] == '^') return false;
  const bool whole = list[0] == '=';
  std::istringstream names(whole ? list.substr(1) : list);
  for (std::string name; std::getline(names, name, ',');) {
    name = name.substr(0, name.find(':')); // a port may follow
    if (name == "lo" || (!whole && !name.empty() && std::string("lo").starts_with(name))) return true;
  }
  return false;
}

} // namespace

std::vector<environment_setting> nccl_settings(const std::string& interface, bool across_nodes,
                                               const std::function<const char*(const char*)>& get) {
  std::vector<environment_setting> settings;
  if (get(kMulticast) == nullptr) settings.push_back({kMulticast, "0"});
  if (const char* users = get(kInterface)) {
    if (across_nodes && chooses_loopback(users)) {
      throw std::invalid_argument(std::string(kInterface) + "=" + users + " is loopback, and the group has ranks on several machines");
    }
  } else if (!interface.empty()) {
    settings.push_back({kInterface, "=" + choose_interface(interface, across_nodes).name});
  } else if (across_nodes) {
    throw std::invalid_argument("a group with ranks on several machines needs an interface to be chosen");
  }
  return settings;
}

std::string forbids_peer_memory(const std::function<const char*(const char*)>& get) {
  const auto said = [&](const char* name) { return get(name) != nullptr ? std::string(get(name)) : std::string(); };
  const std::string off = said(kPeersOff), level = said(kPeerLevel);
  if (!off.empty() && off != "0") return kPeersOff + ("=" + off);
  return level == "LOC" || level == "0" ? kPeerLevel + ("=" + level) : std::string();
}

} // namespace troupe
