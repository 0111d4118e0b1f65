#include "actors/supervisor_seats.hpp"

#include <algorithm>
#include <caf/exit_reason.hpp>
#include <caf/io/middleman.hpp>
#include <caf/send.hpp>
#include <caf/stateful_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <stdexcept>
#include <utility>

#include "actors/device_actor.hpp"
#include "actors/place_names.hpp"
#include "actors/slot_board.hpp"
#include "actors/supervisor_standby.hpp"
#include "actors/worker_process.hpp"
#include "core/hex.hpp"

namespace troupe::actors {

using self_pointer = supervisor_pointer;

void set_timer(self_pointer self, group_wait wait, std::chrono::milliseconds delay) {
  self->delayed_send(self, delay, group_timeout{self->state.generation, wait, self->state.losses});
}

std::string rank_name(const supervisor_state& s, std::int32_t rank) { return rank_prefix(rank, s.seats.size()); }

rank_seat* find_seat(supervisor_state& s, const std::string& token) {
  const auto found = std::find_if(s.seats.begin(), s.seats.end(), [&](const rank_seat& seat) { return seat.token == token; });
  return found == s.seats.end() ? nullptr : &*found;
}

void close_port(self_pointer self) {
  auto& s = self->state;
  const std::uint16_t port = std::exchange(s.port, std::uint16_t{0});
  if (port == 0) return;                                      // closed already: the number may be another group's by now
  if (s.shared->cluster) s.shared->cluster->close_port(port); // first: once it is free, another group may get it
  self->system().middleman().unpublish(s.registrar, port);
}

void reap(supervisor_state& s, std::int32_t rank) {
  s.seats[static_cast<std::size_t>(rank)].child.reset();
  s.shared->device_pid(s.replica, rank) = 0;
}

namespace {

bool occupied(const supervisor_state& s, const rank_seat& seat) { return seat.child != nullptr || s.alive.contains(seat.address); }

} // namespace

bool all_ended(const supervisor_state& s) {
  return std::none_of(s.seats.begin(), s.seats.end(), [&](const rank_seat& seat) { return occupied(s, seat); });
}

void dismiss_ranks(self_pointer self) {
  auto& s = self->state;
  for (rank_seat& seat : s.seats) {
    if (seat.child != nullptr) seat.child->kill();
    if (s.alive.contains(seat.address)) self->send_exit(seat.address, caf::exit_reason::kill);
    seat.device = nullptr;
  }
}

void release_ranks(self_pointer self) {
  for (rank_seat& seat : self->state.seats) {
    caf::anon_send_exit(seat.address, caf::exit_reason::user_shutdown);
    seat.device = nullptr;
  }
}

void clear_seats(self_pointer self) {
  auto& s = self->state;
  dismiss_ranks(self);
  for (std::int32_t rank = 0; rank < static_cast<std::int32_t>(s.seats.size()); ++rank) reap(s, rank);
  s.seats.clear();
  if (!s.registrar) return;
  close_port(self);
  self->send_exit(s.registrar, caf::exit_reason::user_shutdown);
  s.registrar = nullptr;
}

namespace {

// Passes introductions on, and nothing else: what is published is as little as possible.
registrar_actor::behavior_type run_registrar(registrar_actor::pointer self, supervisor_actor supervisor) {
  return {
      [=](device_hello& hello) { return self->delegate(supervisor, std::move(hello)); },
      [=](group_rendezvous& at) { return self->delegate(supervisor, std::move(at)); },
      [=](device_ready& ready) { return self->delegate(supervisor, std::move(ready)); },
      [=](device_start_failed& failed) { return self->delegate(supervisor, std::move(failed)); },
  };
}

void start_thread(self_pointer self, rank_seat& seat) {
  auto& s = self->state;
  auto device = self->system().spawn<caf::detached>(run_device, s.shared->parts.make_executor, registrar_actor(self), seat.token);
  self->monitor(device);
  seat.address = device.address();
  s.alive.insert(seat.address);
}

void open_port(self_pointer self) {
  auto& s = self->state;
  s.registrar = self->spawn(run_registrar, supervisor_actor(self));
  auto port = self->system().middleman().publish(s.registrar, 0, "127.0.0.1");
  if (!port) throw std::runtime_error("device process: no port on the loopback interface: " + self->system().render(port.error()));
  s.port = *port;
  if (s.shared->cluster) s.shared->cluster->open_port(s.port);
}

void start_child(self_pointer self, std::int32_t rank) {
  auto& s = self->state;
  auto& seat = s.seats[static_cast<std::size_t>(rank)];
  seat.started_as = s.generation;
  if (seat.where.node != this_machine) {
    seat.child = make_remote_worker(s.core.cluster, start_worker{seat.where.node, s.replica, rank, s.generation, seat.where.slot, s.port,
                                                                 seat.token, program_on(s, seat.where.node)});
    return;
  }
  if ((seat.child = call_standby(self, rank)) != nullptr) {
    s.shared->device_pid(s.replica, rank) = seat.child->pid();
    return;
  }
  const serving_options& o = s.shared->options;
  worker_start start{o.worker_command, {}, o.worker_preamble, s.port, seat.token};
  start.command.front() = s.shared->programs.at(program_on(s, this_machine));
  if (s.shared->cluster) start.arguments = o.slot_arguments.at(static_cast<std::size_t>(seat.where.slot));
  seat.child = make_local_worker(std::move(start), [boss = supervisor_actor(self), generation = s.generation, rank](int status) {
    caf::anon_send(boss, child_changed{generation, rank, status});
  });
  s.shared->device_pid(s.replica, rank) = seat.child->pid();
}

} // namespace

bool claim_places(self_pointer self) {
  auto& s = self->state;
  s.seats.resize(static_cast<std::size_t>(s.shared->options.group_size));
  if (!s.shared->cluster) return true;
  const auto placed = s.shared->slots->claim(s.replica);
  if (!placed) {
    s.seats.clear();
    return false;
  }
  for (std::size_t rank = 0; rank < s.seats.size(); ++rank) s.seats[rank].where = placed->ranks[rank];
  if (placed->stages_split) s.shared->log("no machine has room for all ranks of a stage: they work across machines, which is slow");
  return true;
}

program_number program_on(const supervisor_state& s, node_number machine) {
  const auto found = s.programs.find(machine);
  return found == s.programs.end() ? 0 : found->second;
}

std::int32_t ranks_on(const supervisor_state& s, node_number node) {
  return static_cast<std::int32_t>(std::count_if(s.seats.begin(), s.seats.end(), [&](const rank_seat& x) { return x.where.node == node; }));
}

void drop_ranks_on(supervisor_state& s, node_number node) {
  for (rank_seat& seat : s.seats) {
    if (seat.where.node == node) seat.child.reset();
  }
}

void start_ranks(self_pointer self) {
  auto& s = self->state;
  for (rank_seat& seat : s.seats) seat.token = random_hex(16); // proof that a connection comes from the child we started
  if (s.network()) open_port(self);
  for (std::int32_t rank = 0; rank < static_cast<std::int32_t>(s.seats.size()); ++rank) {
    s.network() ? start_child(self, rank) : start_thread(self, s.seats[static_cast<std::size_t>(rank)]);
  }
}

void tell_place(self_pointer self, rank_seat& seat) {
  auto& s = self->state;
  const auto rank = static_cast<std::int32_t>(&seat - s.seats.data());
  if (!seat.device || (rank > 0 && !s.rendezvous)) return;
  // Without a sender: CAF's broker watches over every sender that it has told a remote actor of, and may keep the news of this one's end,
  // and with it this actor and its thread, until after the system has waited for all threads.
  caf::anon_send(seat.device, rank_start{s.replica, rank, static_cast<std::int32_t>(s.seats.size()), s.generation,
                                         rank > 0 ? *s.rendezvous : std::string(),
                                         s.info ? std::optional(s.info->num_blocks) : std::nullopt, s.kv_usable});
}

} // namespace troupe::actors
