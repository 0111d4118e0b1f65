// What NCCL finds in its environment. NCCL is not needed for it.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace troupe {

struct environment_setting {
  std::string name, value;
};

// What has to be set before NCCL's first call in this process; what the user has set stays as it is. `get` is std::getenv.
// Multicast over NVLink is off. With an `interface` (see choose_interface()) NCCL's own sockets use exactly that one.
// Throws std::invalid_argument when a group across nodes has no interface chosen, or would talk through loopback, by ours or by the user's
// word.
std::vector<environment_setting> nccl_settings(const std::string& interface, bool across_nodes,
                                               const std::function<const char*(const char*)>& get);

// What the user has set that forbids GPUs to reach into each other's memory, NVLink or not, as "NCCL_P2P_DISABLE=1"; empty: nothing.
std::string forbids_peer_memory(const std::function<const char*(const char*)>& get);

} // namespace troupe
