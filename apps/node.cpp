// troupe node: offers this machine's devices to a cluster, for as long as it is told to.
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <optional>
#include <random>
#include <stdexcept>

#include "actors/cluster.hpp"
#include "apps/cluster/fingerprint.hpp"
#include "apps/cluster/flags.hpp"
#include "apps/commands.hpp"
#include "apps/keeper_process.hpp"
#include "apps/model_source.hpp"
#include "apps/shutdown_signals.hpp"
#include "apps/upgrade.hpp"
#include "device/cpu/host_limits.hpp"
#include "transport/cluster/links.hpp"
#include "transport/collective/network_interface.hpp"

namespace troupe::apps {

namespace {

using namespace std::chrono_literals;

struct node_options {
  std::string join, name, interface;
  std::filesystem::path model, draft_model; // empty: the head's
  std::string device = "auto";              // what the head has, at its first
  int drain_timeout_s = 30;
  cluster_flags cluster;
  bool upgrade = false; // a node that runs already is asked
  upgrade_flags program;
};

std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name[0] == '\0' ? "node" : name.data();
}

// 0.1 s, doubling to 5 s, and somewhat apart from other nodes that lost the same head.
std::chrono::milliseconds delay_before(int attempt, std::mt19937& random) {
  const int base = std::min(100 << std::min(attempt, 6), 5'000);
  return std::chrono::milliseconds(base + static_cast<int>(random() % static_cast<unsigned>(base / 2)));
}

class node_program {
 public:
  explicit node_program(const node_options& o) : o_(o), who_(read_credentials(o.cluster)) {
    std::tie(host_, port_) = parse_address(o.join, "--join");
    about_.name = o.name.empty() ? host_name() : o.name;
    std::random_device source;
    about_.instance = static_cast<std::uint64_t>(source()) << 32 | source();
    about_.memory_bytes = cpu::available_memory().value_or(0);
    random_.seed(source());
  }

  int run();
  // On another thread than run().
  std::optional<std::string> replace_program(const std::string& program, std::chrono::milliseconds start_deadline,
                                             const admin_socket::tell_fn& tell);

 private:
  enum class next : std::uint8_t { end, retry };

  next stay_once();
  void choose_address(const cluster::links::route& route);
  actors::membership_result stay(actors::node_membership& membership);
  actors::worker_plan prepare(const actors::head_description& head);
  void say(const std::string& line);

  // As long as it lives, programs are replaced in that stay.
  struct open_stay {
    open_stay(node_program& program, actors::node_membership& stay) : program_(program) { set(&stay); }
    ~open_stay() {
      program_.stay_->end(); // so that nobody waits for it who holds the mutex
      set(nullptr);
    }
    void set(actors::node_membership* stay) {
      const std::lock_guard lock(program_.stay_mutex_);
      program_.stay_ = stay;
    }
    node_program& program_;
  };

  const node_options& o_;
  const std::string own_program_ = program_path();
  const shutdown_signals signals_; // before any thread
  const cluster::credentials who_;
  std::string host_;
  std::uint16_t port_ = 0;
  actors::node_description about_;
  std::mt19937 random_;
  std::shared_ptr<keeper_process> keeper_; // outlives each stay
  std::string last_line_;
  bool was_member_ = false;
  bool ending_ = false;                     // a signal came
  std::mutex stay_mutex_;                   // held while a program is replaced
  actors::node_membership* stay_ = nullptr; // null: in no cluster now. Written by run()'s thread alone
  std::mutex program_mutex_;
  std::string program_ = "/proc/self/exe"; // that ranks run
};

// The same line once in a row: attempts go on for ever.
void node_program::say(const std::string& line) {
  if (std::exchange(last_line_, line) != line) spdlog::warn("{}", line);
}

void node_program::choose_address(const cluster::links::route& route) {
  cluster::check_exposure(route.to, who_, o_.cluster.insecure_network);
  const network_interface mine = choose_interface(o_.interface.empty() ? route.from : o_.interface, false);
  about_.address = mine.address;
  about_.loopback = mine.loopback;
}

std::string flag_for_device(const std::string& asked, const std::string& head) {
  const bool cpu = asked == "cpu";
  if (asked == "auto") return head;
  if (cpu != (head == "cpu")) {
    throw std::runtime_error("--device " + asked + ": the cluster's ranks run on " + (cpu ? "GPUs" : "the CPU") + ", all of them");
  }
  return asked;
}

// Called by the node's actor, each time that a head has taken it in.
actors::worker_plan node_program::prepare(const actors::head_description& head) {
  std::vector<std::string> arguments = head.arguments;
  arguments.insert(arguments.begin(), o_.model.empty() ? head.model : o_.model.string());
  engine_options engine = parse_arguments(std::move(arguments));
  engine.device = flag_for_device(o_.device, head.device);
  const std::string heads_draft = engine.draft_model.string();
  if (!heads_draft.empty() && !o_.draft_model.empty()) engine.draft_model = o_.draft_model;
  const auto source = open_source(engine);
  if (const std::string mine = fingerprint(engine, *source); mine != head.fingerprint) {
    const auto named = [](const std::string& model, const std::string& draft) {
      return draft.empty() ? model : model + ", with the draft model " + draft;
    };
    throw std::runtime_error("the model at " + named(engine.model.string(), engine.draft_model.string()) + " (fingerprint " + mine +
                             ") is not the head's " + named(head.model, heads_draft) + " (" + head.fingerprint + ")");
  }
  const machine_slots slots = describe_slots(engine, source->config(), o_.cluster.slots, about_.address, !about_.loopback);
  if (slots.arguments.empty()) throw std::runtime_error("--slots 0: a node needs one at least");
  actors::worker_plan plan;
  {
    const std::lock_guard lock(program_mutex_);
    plan.command = {program_, "worker"};
  }
  plan.slot_arguments = slots.arguments;
  plan.device = slots.description;
  if (engine.keep_weights.value_or(head.device != "cpu")) {
    if (!keeper_) keeper_ = std::make_shared<keeper_process>(std::make_shared<telemetry::metrics>("", TROUPE_VERSION));
    plan.command.push_back("--keeper");
    plan.preamble = keeper_->line() + "\n";
  }
  spdlog::info("joined as {}: {} slot(s) at {}, {}", about_.name, slots.arguments.size(), about_.address, slots.description);
  was_member_ = true;
  last_line_.clear();
  return plan;
}

// Until it ends; a signal asks to leave, a second one, or time, ends it at once.
actors::membership_result node_program::stay(actors::node_membership& membership) {
  std::optional<std::chrono::steady_clock::time_point> limit;
  while (true) {
    if (auto result = membership.result()) return *result;
    if (limit && std::chrono::steady_clock::now() > *limit) {
      spdlog::warn("its ranks were not moved within {} s: leaving all the same", o_.drain_timeout_s);
      return {actors::membership_end::left, {}};
    }
    if (!signals_.wait(20ms)) continue;
    if (std::exchange(ending_, true)) {
      spdlog::warn("second signal: ending now");
      return {actors::membership_end::left, {}};
    }
    spdlog::info("draining: {} rank(s) run here, up to {} s", membership.ranks(), o_.drain_timeout_s);
    limit = std::chrono::steady_clock::now() + std::chrono::seconds(o_.drain_timeout_s);
    membership.leave();
  }
}

node_program::next node_program::stay_once() {
  cluster::links links({host_, port_, who_, this_program()});
  choose_address(links.probe());
  actors::node_parts parts;
  parts.about = about_;
  parts.prepare = [this](const actors::head_description& head) { return prepare(head); };
  parts.lead_to = [&links](std::uint16_t port) { return links.open(std::to_string(port)); };
  const auto membership = actors::node_membership::join(links.open(std::string(cluster::join_purpose)), std::move(parts));
  const open_stay while_it_lasts(*this, *membership);
  const actors::membership_result end = stay(*membership);
  switch (end.how) {
    case actors::membership_end::refused:
      throw cluster::refused(end.reason);
    case actors::membership_end::passing:
      throw std::runtime_error(end.reason);
    case actors::membership_end::lost:
      throw std::runtime_error("the head is gone, or cut off; its ranks here were ended");
    case actors::membership_end::left:
      break;
  }
  spdlog::info("left the cluster");
  return next::end;
}

std::optional<std::string> node_program::replace_program(const std::string& program, std::chrono::milliseconds start_deadline,
                                                         const admin_socket::tell_fn& tell) {
  const std::lock_guard lock(stay_mutex_);
  if (stay_ == nullptr) return "the node is in no cluster at the moment";
  if (auto failure = stay_->replace_program(program, start_deadline, tell)) return failure;
  const std::lock_guard known(program_mutex_);
  program_ = program; // in later stays, too
  return std::nullopt;
}

int node_program::run() {
  const auto upgrades =
      listen_for_upgrades({"the ranks on this node", own_program_,
                           [this](const std::string& program, std::chrono::milliseconds start_deadline, const admin_socket::tell_fn& tell) {
                             return replace_program(program, start_deadline, tell);
                           }});
  for (int attempt = 0; !ending_; ++attempt) {
    const bool before = was_member_;
    try {
      if (stay_once() == next::end) return 0;
    } catch (const cluster::refused& e) {
      if (!was_member_) throw std::runtime_error("the cluster at " + o_.join + " refuses this node: " + e.what());
      say(std::string("refused: ") + e.what());
    } catch (const std::invalid_argument&) { // of our own flags
      throw;
    } catch (const std::exception& e) {
      say(std::string(e.what()) + "; trying again");
    }
    if (!before && was_member_) attempt = 0;
    if (last_line_.empty()) attempt = 0;
    if (!ending_ && signals_.wait(delay_before(attempt, random_))) return 0;
  }
  return 0;
}

int upgrade_node(upgrade_flags flags) {
  const char* const command = "troupe node --upgrade";
  if (flags.pid == 0) {
    const auto nodes = admin_processes("node");
    if (nodes.size() != 1) {
      std::string text =
          nodes.empty() ? "no node of this user runs here, or none that can be reached" : "several nodes of this user run here:";
      for (const pid_t pid : nodes) text += " " + std::to_string(pid);
      std::fprintf(stderr, "%s: %s; --pid names one\n", command, text.c_str());
      return 1;
    }
    flags.pid = nodes.front();
  }
  return ask_for_upgrade(flags, command);
}

int node(const node_options& o) {
  if (o.upgrade) return upgrade_node(o.program);
  if (o.join.empty()) throw std::invalid_argument("--join HOST:PORT says which cluster the node is for");
  return node_program(o).run();
}

void add_upgrading(CLI::App& command, node_options& o) {
  CLI::Option* upgrade =
      command.add_flag("--upgrade", o.upgrade, "give the ranks of the node that runs on this machine another program, under load, and end");
  upgrade->excludes(command.get_option("--join"));
  command.add_option("--pid", o.program.pid, "with --upgrade: process id of the node (default: the only one)")
      ->check(CLI::PositiveNumber)
      ->needs(upgrade);
  add_upgrade_flags(command, o.program);
  for (const char* flag : {"--program", "--start-deadline"}) command.get_option(flag)->needs(upgrade);
}

} // namespace

void add_node(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<node_options>();
  CLI::App* command = app.add_subcommand("node", "Offer this machine's devices to a serving process on another");
  command->add_option("--join", options->join, "HOST:PORT of the head (its --cluster-listen)");
  command->add_option("--name", options->name, "unique in the cluster (default: the host's name)");
  command->add_option("--interface", options->interface,
                      "interface or address that this machine's ranks talk through (default: the one that leads to the head)");
  command->add_option("--model", options->model, "where the head's model is on this machine (default: at the same path)")
      ->check(CLI::ExistingPath);
  command
      ->add_option("--speculative-draft-model", options->draft_model,
                   "likewise the head's draft model, if it has one (default: at the same path)")
      ->check(CLI::ExistingPath);
  command->add_option("--device", options->device, "auto (what the head's ranks run on), cpu, cuda or cuda:N, the first one to use")
      ->capture_default_str();
  command->add_option("--drain-timeout", options->drain_timeout_s, "seconds after SIGTERM for the head to move its ranks elsewhere")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  add_cluster_flags(*command, options->cluster);
  add_upgrading(*command, *options);
  command->callback([options, &exit_code] { exit_code = node(*options); });
}

} // namespace troupe::apps
