#include "apps/cluster/head.hpp"

#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <stdexcept>
#include <utility>

#include "apps/cluster/fingerprint.hpp"
#include "apps/device_choice.hpp"
#include "transport/collective/network_interface.hpp"

namespace troupe::apps {

void add_head_flags(CLI::App& command, head_flags& f) {
  command.add_option("--cluster-listen", f.listen,
                     "INTERFACE:PORT or ADDRESS:PORT where nodes join; ranks are then placed on their slots, too");
  command.add_option("--nodes", f.nodes, "place nothing before so many nodes have joined")->check(CLI::Range(0, 1024));
  command.add_flag("--cluster-any-build", f.any_build, "take nodes of other versions and builds that speak the same protocol");
  add_cluster_flags(command, f.both);
}

void check_head_flags(const head_flags& f) {
  if (!f.listen.empty()) return;
  const auto& who = f.both.who;
  const bool any = !f.both.token_file.empty() || !who.certificate.empty() || !who.key.empty() || !who.authority.empty() ||
                   f.both.insecure_network || f.both.slots || f.nodes > 0 || f.any_build;
  if (any) throw std::invalid_argument("--slots, --nodes and the flags of --cluster-... are of a cluster, which --cluster-listen opens");
}

cluster_head::cluster_head(const head_flags& flags, std::function<void()> refused, std::function<void(const std::string&)> groups_wait)
    : flags_(flags), groups_wait_(std::move(groups_wait)) {
  const auto [host, port] = parse_address(flags.listen, "--cluster-listen");
  try {
    const network_interface mine = choose_interface(host, false);
    interface_ = mine.address;
    loopback_ = mine.loopback;
    cluster::gate_options door;
    door.address = interface_;
    door.port = port;
    door.who = read_credentials(flags.both);
    cluster::check_exposure(interface_, door.who, flags.both.insecure_network);
    if (!loopback_ && !door.who.tls()) spdlog::warn("cluster: without TLS on {}; the network is trusted, as the flag says", interface_);
    door.program = this_program();
    door.any_build = flags.any_build;
    door.log = [](const std::string& line) { spdlog::warn("{}", line); };
    door.refused = std::move(refused);
    gate_ = std::make_unique<cluster::gate>(std::move(door));
  } catch (const std::exception& e) {
    throw std::invalid_argument("--cluster-listen " + flags.listen + ": " + e.what());
  }
}

std::string cluster_head::address() const { return interface_ + ":" + std::to_string(gate_->port()); }

std::vector<std::vector<std::string>> cluster_head::slot_arguments(const engine_options& options, const checkpoint& source) const {
  return describe_slots(options, source.config(), flags_.both.slots, interface_, !loopback_).arguments;
}

actors::cluster_options cluster_head::describe(const engine_options& options, const checkpoint& source) {
  actors::cluster_options cluster;
  cluster.local_slots = static_cast<std::int32_t>(slot_arguments(options, source).size());
  cluster.least_nodes = flags_.nodes;
  cluster.loopback = loopback_;
  cluster.head.model = std::filesystem::absolute(options.model).string();
  cluster.head.device =
      options.device == "cpu" || (options.device == "auto" && !choose_device(options, source.config()).gpu) ? "cpu" : "cuda";
  cluster.head.fingerprint = fingerprint(options, source);
  engine_options shared = options;
  if (!shared.draft_model.empty()) shared.draft_model = std::filesystem::absolute(shared.draft_model);
  cluster.head.arguments = to_arguments(shared);
  cluster.head.arguments.erase(cluster.head.arguments.begin()); // the model: each machine has its own path
  cluster.lead_join_to = [gate = gate_.get()](std::uint16_t port) { gate->lead_join_to(port); };
  cluster.open_port = [gate = gate_.get()](std::uint16_t port) { gate->open(port); };
  cluster.groups_wait = groups_wait_;
  cluster.close_port = [gate = gate_.get()](std::uint16_t port) { gate->close(port); };
  return cluster;
}

} // namespace troupe::apps
