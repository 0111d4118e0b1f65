// troupe serve as the head of a cluster: its flags, its door, and what nodes are told of the model.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "actors/cluster.hpp"
#include "apps/cluster/flags.hpp"
#include "apps/engine_options.hpp"
#include "models/checkpoint.hpp"
#include "transport/cluster/gate.hpp"

namespace troupe::apps {

struct head_flags {
  cluster_flags both;
  std::string listen; // interface or address, and port; empty: no cluster
  std::int32_t nodes = 0;
  bool any_build = false;
};

// Throws std::invalid_argument where flags of a cluster are given without one.
void check_head_flags(const head_flags& flags);

void add_head_flags(CLI::App& command, head_flags& flags);

class cluster_head {
 public:
  // The door is open from here on, but leads nowhere until the engine runs. `refused` hears of each node that is turned away there,
  // `groups_wait` what cluster_options says. Throws std::invalid_argument naming the flag.
  cluster_head(const head_flags& flags, std::function<void()> refused, std::function<void(const std::string&)> groups_wait);

  std::string address() const;
  // Both throw load_error.
  std::vector<std::vector<std::string>> slot_arguments(const engine_options& options, const checkpoint& source) const;
  actors::cluster_options describe(const engine_options& options, const checkpoint& source);

 private:
  const head_flags flags_;
  const std::function<void(const std::string&)> groups_wait_;
  std::string interface_; // numeric
  bool loopback_ = true;
  std::unique_ptr<cluster::gate> gate_;
};

} // namespace troupe::apps
