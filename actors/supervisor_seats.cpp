#include "actors/supervisor_seats.hpp"

#include <algorithm>
#include <caf/exit_reason.hpp>
#include <caf/io/middleman.hpp>
#include <caf/send.hpp>
#include <caf/stateful_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <random>
#include <stdexcept>
#include <utility>

#include "actors/device_actor.hpp"

namespace troupe::actors {

using self_pointer = supervisor_pointer;

std::string rank_name(const supervisor_state& s, std::int32_t rank) {
  return s.seats.size() > 1 ? "rank " + std::to_string(rank) + ": " : std::string();
}

rank_seat* find_seat(supervisor_state& s, const std::string& token) {
  const auto found = std::find_if(s.seats.begin(), s.seats.end(), [&](const rank_seat& seat) { return seat.token == token; });
  return found == s.seats.end() ? nullptr : &*found;
}

void close_port(self_pointer self) {
  auto& s = self->state;
  if (s.registrar) self->system().middleman().unpublish(s.registrar);
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

// 128 random bits: proof that a connection comes from the child we started.
std::string random_token() {
  std::random_device source;
  std::string token;
  for (int i = 0; i < 4; ++i) {
    const auto word = static_cast<std::uint32_t>(source());
    for (int shift = 28; shift >= 0; shift -= 4) token += "0123456789abcdef"[(word >> shift) & 0xF];
  }
  return token;
}

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

std::uint16_t open_port(self_pointer self) {
  auto& s = self->state;
  s.registrar = self->spawn(run_registrar, supervisor_actor(self));
  auto port = self->system().middleman().publish(s.registrar, 0, "127.0.0.1");
  if (!port) throw std::runtime_error("device process: no port on the loopback interface: " + self->system().render(port.error()));
  return *port;
}

void start_child(self_pointer self, std::int32_t rank, std::uint16_t port) {
  auto& s = self->state;
  auto& seat = s.seats[static_cast<std::size_t>(rank)];
  auto command = s.shared->options.worker_command;
  command.front() = s.program;
  command.insert(command.end(), {"--parent-port", std::to_string(port)});
  seat.child = std::make_unique<child_process>(command, s.shared->options.worker_preamble + seat.token,
                                               [boss = supervisor_actor(self), generation = s.generation, rank](int status) {
                                                 caf::anon_send(boss, child_changed{generation, rank, status});
                                               });
  s.shared->device_pid(s.replica, rank) = seat.child->pid();
}

} // namespace

void start_ranks(self_pointer self) {
  auto& s = self->state;
  s.seats.resize(static_cast<std::size_t>(s.shared->options.group_size));
  for (rank_seat& seat : s.seats) seat.token = random_token();
  const std::uint16_t port = s.network() ? open_port(self) : std::uint16_t{0};
  for (std::int32_t rank = 0; rank < static_cast<std::int32_t>(s.seats.size()); ++rank) {
    s.network() ? start_child(self, rank, port) : start_thread(self, s.seats[static_cast<std::size_t>(rank)]);
  }
}

void tell_place(self_pointer self, rank_seat& seat) {
  auto& s = self->state;
  const auto rank = static_cast<std::int32_t>(&seat - s.seats.data());
  if (!seat.device || (rank > 0 && !s.rendezvous)) return;
  // Without a sender: CAF's broker watches over every sender that it has told a remote actor of, and may keep the news of this one's end,
  // and with it this actor and its thread, until after the system has waited for all threads.
  caf::anon_send(seat.device,
                 rank_start{s.replica, rank, static_cast<std::int32_t>(s.seats.size()), s.generation,
                            rank > 0 ? *s.rendezvous : std::string(), s.info ? std::optional(s.info->num_blocks) : std::nullopt, s.kv_usable});
}

} // namespace troupe::actors
