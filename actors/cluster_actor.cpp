#include "actors/cluster_actor.hpp"

#include <algorithm>
#include <caf/actor_cast.hpp>
#include <caf/stateful_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <chrono>
#include <string_view>
#include <utility>

#include "actors/slot_board.hpp"

namespace troupe::actors {

namespace {

using self_pointer = actor_pointer<cluster_actor, cluster_state>;
using phase = cluster_state::member::phase;

constexpr std::chrono::milliseconds kLook{100}; // between looks at figures, and whether a node that leaves is free of groups
constexpr std::int32_t kMostSlots = 1024;
constexpr std::size_t kLongestName = 63;

bool good_name(std::string_view name) {
  const auto plain = [](unsigned char c) { return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-'; };
  return !name.empty() && name.size() <= kLongestName && std::all_of(name.begin(), name.end(), plain);
}

void tell_supervisors(self_pointer self, node_number node, const std::string& name, node_event what) {
  for (const supervisor_actor& supervisor : self->state.supervisors) self->send(supervisor, node_change{node, name, what});
}

void show_machine(const serving_state& shared, const std::string& name, node_number number, std::int32_t slots, bool leaving) {
  shared.parts.metrics->set_node(name, {true, slots, shared.slots->used(number), leaving});
}

// A node that has joined.
void show(self_pointer self, node_number number, const cluster_state::member& node) {
  show_machine(*self->state.shared, node.about.name, number, node.slots, node.now == phase::leaving || node.wants_to_leave);
}

// -- joining ----------------------------------------------------------------------------------------------------------------------

// The number of a member by that name.
std::optional<node_number> number_of(const cluster_state& s, const std::string& name) {
  const auto found = std::find_if(s.nodes.begin(), s.nodes.end(), [&](const auto& node) { return node.second.about.name == name; });
  return found == s.nodes.end() ? std::nullopt : std::optional(found->first);
}

void forget(self_pointer self, node_number node, const char* how, log_level level = log_level::warning);

node_refusal judge(self_pointer self, const node_description& about) {
  const bool ours = self->state.shared->cluster->loopback;
  if (!good_name(about.name) || about.name == telemetry::head_machine) {
    return {"a node's name has 1 to 63 letters, digits, '.', '_' or '-', and is not 'head', unlike \"" + about.name.substr(0, 100) + "\"",
            false};
  }
  if (about.loopback != ours) {
    return {about.loopback ? "the node's ranks would talk through loopback (" + about.address +
                                 "), which the other machines of the cluster cannot reach: --interface chooses another"
                           : "the cluster is on loopback, and the node's interface (" + about.address + ") is not",
            false};
  }
  const auto same = number_of(self->state, about.name);
  if (same && self->state.nodes.at(*same).about.instance != about.instance) {
    return {"a node called " + about.name + " is a member already; --name gives another name", true};
  }
  return {};
}

void node_has_come(self_pointer self, const node_hello& hello) {
  auto& s = self->state;
  const auto handle = caf::actor_cast<node_actor>(self->current_sender());
  if (!handle) return;
  if (node_refusal no = judge(self, hello.about); !no.reason.empty()) {
    s.shared->log("node " + hello.about.name.substr(0, kLongestName) + " refused: " + no.reason);
    s.shared->parts.metrics->node_refused();
    self->send(handle, std::move(no));
    return;
  }
  if (const auto before = number_of(s, hello.about.name)) forget(self, *before, "came back before it was missed");
  self->monitor(handle);
  s.nodes[++s.last_number] = {hello.about, handle, 0, phase::joining};
  self->send(handle, node_welcome{s.shared->cluster->head});
}

// The number of the node that speaks; none when it is no member (any more).
std::optional<node_number> speaker(self_pointer self) {
  const auto& nodes = self->state.nodes;
  const auto found =
      std::find_if(nodes.begin(), nodes.end(), [&](const auto& node) { return self->current_sender() == node.second.handle; });
  return found == nodes.end() ? std::nullopt : std::optional(found->first);
}

void node_is_ready(self_pointer self, const node_ready& ready) {
  auto& s = self->state;
  const auto number = speaker(self);
  if (!number || s.nodes.at(*number).now != phase::joining) return;
  auto& node = s.nodes.at(*number);
  node.now = phase::member;
  node.slots = std::clamp(ready.slots, 1, kMostSlots);
  s.shared->slots->add(*number, node.about.name, node.slots);
  s.shared->inform("node " + node.about.name + " joined: " + std::to_string(node.slots) + " slot(s) at " + node.about.address + ", " +
                   ready.device + ", " + std::to_string(node.about.memory_bytes >> 20) + " MiB of memory free");
  show(self, *number, node);
  tell_supervisors(self, *number, node.about.name, node_event::joined);
}

// -- going ------------------------------------------------------------------------------------------------------------------------

void forget(self_pointer self, node_number number, const char* how, log_level level) {
  auto& s = self->state;
  const auto node = s.nodes.extract(number);
  self->demonitor(node.mapped().handle.address());
  if (node.mapped().now == phase::joining) return;
  const std::string& name = node.mapped().about.name;
  s.shared->slots->remove(number);
  level == log_level::info ? s.shared->inform("node " + name + " " + how) : s.shared->log("node " + name + " " + how);
  s.shared->parts.metrics->set_node(name, {.missing = node.mapped().now != phase::leaving && !node.mapped().wants_to_leave});
  tell_supervisors(self, number, name, node_event::lost);
}

void node_is_down(self_pointer self, const caf::down_msg& down) {
  auto& nodes = self->state.nodes;
  const auto found = std::find_if(nodes.begin(), nodes.end(), [&](const auto& node) { return node.second.handle == down.source; });
  if (found == nodes.end()) return;
  self->state.shared->parts.metrics->node_lost();
  forget(self, found->first, "lost: it ended, or does not answer");
}

void look(self_pointer self) {
  auto& s = self->state;
  show_machine(*s.shared, std::string(telemetry::head_machine), this_machine, s.shared->cluster->local_slots, false);
  std::vector<node_number> free;
  for (const auto& [number, node] : s.nodes) {
    if (node.now != phase::joining) show(self, number, node);
    if (node.now == phase::leaving && s.shared->slots->used(number) == 0) free.push_back(number);
  }
  for (const node_number number : free) {
    self->send(s.nodes.at(number).handle, caf::close_atom::value);
    forget(self, number, "has left", log_level::info);
  }
  self->delayed_send(self, kLook, caf::tick_atom::value);
}

void let_leave(self_pointer self, node_number number) {
  auto& s = self->state;
  auto& node = s.nodes.at(number);
  node.now = phase::leaving;
  s.shared->slots->set_leaving(number);
  show(self, number, node);
  s.shared->inform("node " + node.about.name + " wants to leave");
  tell_supervisors(self, number, node.about.name, node_event::leaving);
}

void node_leaves(self_pointer self) {
  auto& s = self->state;
  const auto number = speaker(self);
  if (!number) return;
  auto& node = s.nodes.at(*number);
  if (node.now == phase::leaving) return;
  if (node.now == phase::joining) { // nothing was placed there yet
    self->send(node.handle, caf::close_atom::value);
    return forget(self, *number, "has left", log_level::info);
  }
  if (!node.upgrading) return let_leave(self, *number);
  node.wants_to_leave = true;
  show(self, *number, node);
  s.shared->inform("node " + node.about.name + " wants to leave when the change of its program is over");
  self->send(s.upgrade, caf::leave_atom::value, *number); // at once, where that has not begun
}

void node_declines(self_pointer self, const node_refusal& no) {
  const auto number = speaker(self);
  if (!number) return;
  self->state.shared->log("node " + self->state.nodes.at(*number).about.name + " does not join: " + no.reason);
  self->state.shared->parts.metrics->node_refused();
  forget(self, *number, "declined");
}

// -- programs ---------------------------------------------------------------------------------------------------------------------

void upgrade_node(self_pointer self, machine_upgrade& order) {
  auto& s = self->state;
  const auto number = speaker(self);
  if (!number) return;
  auto& node = s.nodes.at(*number);
  const auto refuse = [&](const char* why) { self->send(node.handle, upgrade_end{*number, why}); };
  if (node.now == phase::joining) return refuse("the node has not joined yet");
  if (node.now == phase::leaving) return refuse("the node is leaving the cluster");
  if (node.upgrading) return refuse("another change of its program is under way");
  node.upgrading = true;
  order.machine = *number;
  order.who = "node " + node.about.name;
  s.shared->inform(order.who + ": its ranks are to run another program");
  self->send(s.upgrade, std::move(order));
}

void pass_to_node(self_pointer self, const upgrade_note& note) {
  const auto found = self->state.nodes.find(note.machine);
  if (found != self->state.nodes.end()) self->send(found->second.handle, note);
}

void upgrade_has_ended(self_pointer self, const upgrade_end& end) {
  auto& s = self->state;
  const auto found = s.nodes.find(end.machine);
  if (found == s.nodes.end() || self->current_sender() != s.upgrade) return;
  auto& node = found->second;
  self->send(node.handle, end);
  if (end.failure.empty()) {
    s.shared->inform("node " + node.about.name + ": its ranks run the new program");
  } else {
    s.shared->log("node " + node.about.name + ": its program was not changed: " + end.failure);
  }
  node.upgrading = false;
  if (std::exchange(node.wants_to_leave, false)) let_leave(self, end.machine);
}

// -- orders and news --------------------------------------------------------------------------------------------------------------

void pass_to_supervisor(self_pointer self, const worker_changed& news) {
  const auto& supervisors = self->state.supervisors;
  if (news.replica < 0 || news.replica >= static_cast<std::int32_t>(supervisors.size())) return;
  self->send(supervisors[static_cast<std::size_t>(news.replica)], news);
}

void start(self_pointer self, const start_worker& order) {
  const auto found = self->state.nodes.find(order.node);
  if (found != self->state.nodes.end()) return self->send(found->second.handle, order);
  pass_to_supervisor(self, {order.replica, order.rank, order.generation, 0, "its node has gone"});
}

void stop(self_pointer self, const stop_worker& order) {
  const auto found = self->state.nodes.find(order.node);
  if (found != self->state.nodes.end()) self->send(found->second.handle, order);
}

} // namespace

cluster_actor::behavior_type run_cluster(self_pointer self, shared_state shared) {
  auto& s = self->state;
  s.shared = std::move(shared);
  s.supervisors.resize(static_cast<std::size_t>(s.shared->options.replicas));
  self->set_down_handler([self](caf::scheduled_actor*, caf::down_msg& down) { node_is_down(self, down); });
  self->send(self, caf::tick_atom::value);
  return {
      [self](caf::join_atom, std::int32_t replica, const supervisor_actor& supervisor) {
        self->state.supervisors.at(static_cast<std::size_t>(replica)) = supervisor;
      },
      [self](caf::join_atom, const upgrade_actor& upgrade) { self->state.upgrade = upgrade; },
      [self](const node_hello& hello) { node_has_come(self, hello); },
      [self](const node_ready& ready) { node_is_ready(self, ready); },
      [self](caf::leave_atom) { node_leaves(self); },
      [self](const node_refusal& no) { node_declines(self, no); },
      [self](const start_worker& order) { start(self, order); },
      [self](const stop_worker& order) { stop(self, order); },
      [self](const worker_changed& news) { pass_to_supervisor(self, news); },
      [self](machine_upgrade& order) { upgrade_node(self, order); },
      [self](const upgrade_note& note) { pass_to_node(self, note); },
      [self](const upgrade_end& end) { upgrade_has_ended(self, end); },
      [self](caf::tick_atom) { look(self); },
  };
}

} // namespace troupe::actors
