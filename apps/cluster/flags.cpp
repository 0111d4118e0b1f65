#include "apps/cluster/flags.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <stdexcept>

#include "actors/worker_protocol.hpp"
#include "apps/cluster/build_id.hpp"
#include "apps/device_choice.hpp"
#include "core/error.hpp"
#include "device/cpu/host_limits.hpp"

namespace troupe::apps {

namespace {

constexpr const char* kTokenVariable = "TROUPE_CLUSTER_TOKEN";

} // namespace

void add_cluster_flags(CLI::App& command, cluster_flags& f) {
  command.add_option("--cluster-token-file", f.token_file,
                     "file whose first line all machines of the cluster know (also TROUPE_CLUSTER_TOKEN)");
  command.add_option("--cluster-cert", f.who.certificate, "this machine's certificate, PEM: mutual TLS, with the next two");
  command.add_option("--cluster-key", f.who.key, "its key, PEM");
  command.add_option("--cluster-ca", f.who.authority, "the cluster's own authority, PEM, that both sides are judged by");
  command.add_flag("--cluster-insecure-network", f.insecure_network,
                   "go beyond loopback without TLS: whoever can listen in on the network, or step between, is trusted");
  command.add_option("--slots", f.slots, "ranks that this machine has room for (default: its GPUs, or 1 on the CPU)")
      ->check(CLI::Range(0, 1024));
}

cluster::credentials read_credentials(const cluster_flags& flags) {
  cluster::credentials who = flags.who;
  if (!flags.token_file.empty()) {
    who.token = cluster::read_token(flags.token_file);
  } else if (const char* token = std::getenv(kTokenVariable)) {
    who.token = token;
  }
  cluster::check_credentials(who);
  return who;
}

cluster::identity this_program() { return {actors::cluster_protocol(), TROUPE_VERSION, build_id()}; }

std::pair<std::string, std::uint16_t> parse_address(const std::string& text, const std::string& flag) {
  const std::size_t colon = text.rfind(':');
  std::uint16_t port = 0;
  if (colon != std::string::npos && colon > 0) {
    std::string host = text.substr(0, colon);
    const auto [end, failed] = std::from_chars(text.data() + colon + 1, text.data() + text.size(), port);
    if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
    if (failed == std::errc() && end == text.data() + text.size()) return {host, port};
  }
  throw std::invalid_argument(flag + ": \"" + text + "\" is not of the form HOST:PORT");
}

machine_slots describe_slots(engine_options o, const model_config& config, std::optional<std::int32_t> slots, const std::string& interface,
                             bool across_nodes) {
  machine_slots machine;
  const device_choice first = slots == 0 ? device_choice{} : choose_device(o, config);
  const int gpus = first.gpu ? count_gpus() - *first.gpu : 0;
  const std::int32_t count = slots.value_or(first.gpu ? gpus : 1);
  if (first.gpu && count > gpus) {
    throw load_error("--slots " + std::to_string(count) + ": there are " + std::to_string(gpus) + " GPUs from " +
                     std::to_string(*first.gpu) + " on");
  }
  const int cores = cpu::usable_cores();
  if (!first.gpu && o.threads == 0) o.threads = std::max(1, cores / std::max(1, count));
  for (std::int32_t slot = 0; slot < count; ++slot) {
    o.device = first.gpu ? "cuda:" + std::to_string(*first.gpu + slot) : "cpu";
    auto& arguments = machine.arguments.emplace_back(to_arguments(o));
    arguments.insert(arguments.end(), {"--interface", interface});
    if (across_nodes) arguments.push_back("--across-nodes");
  }
  machine.description = first.gpu ? std::to_string(gpus) + " GPU(s)" : "CPU, " + std::to_string(cores) + " core(s)";
  return machine;
}

} // namespace troupe::apps
