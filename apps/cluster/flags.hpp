// The flags of both sides of a cluster, and what the two make of them alike.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/engine_options.hpp"
#include "models/model.hpp"
#include "transport/cluster/credentials.hpp"
#include "transport/cluster/handshake.hpp"

namespace CLI {
class App;
}

namespace troupe::apps {

struct cluster_flags {
  std::string token_file; // else the environment's TROUPE_CLUSTER_TOKEN
  cluster::credentials who;
  bool insecure_network = false;
  std::optional<std::int32_t> slots; // none: the GPUs that there are, or 1 on the CPU
};

void add_cluster_flags(CLI::App& command, cluster_flags& flags);

// With the token read. Throws std::invalid_argument.
cluster::credentials read_credentials(const cluster_flags& flags);

cluster::identity this_program();

// "eth0:7700", "10.0.0.1:7700", "[fd00::1]:7700" -> host and port. Throws std::invalid_argument naming `flag`.
std::pair<std::string, std::uint16_t> parse_address(const std::string& text, const std::string& flag);

// What a machine's slots are, and their workers' flags.
struct machine_slots {
  std::vector<std::vector<std::string>> arguments; // by slot
  std::string description;                         // "CPU, 8 cores"
};

// `options`: the cluster's, with this machine's model and --device. Each slot on the CPU gets its share of the cores, each on GPUs one of
// them. Throws load_error where there are fewer GPUs than slots, or none that can be used.
machine_slots describe_slots(engine_options options, const model_config& config, std::optional<std::int32_t> slots,
                             const std::string& interface, bool across_nodes);

} // namespace troupe::apps
