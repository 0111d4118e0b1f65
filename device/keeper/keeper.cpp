#include "device/keeper/keeper.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "device/cpu/host_limits.hpp"

namespace troupe::keeper {
namespace {

constexpr int size_seals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW;
constexpr int all_seals = size_seals | F_SEAL_WRITE;

// In constant time.
bool same_token(const char* given, const std::string& ours) {
  char expected[sizeof(message::token)] = {};
  std::memcpy(expected, ours.data(), std::min(ours.size(), sizeof expected - 1));
  unsigned different = 0;
  for (std::size_t i = 0; i < sizeof expected; ++i) different |= static_cast<unsigned char>(given[i] ^ expected[i]);
  return different == 0;
}

// Size of a memfd that nobody can ever change again (with `seals`: in what they are about), or none.
std::optional<std::uint64_t> sealed_size(int file, int seals = all_seals) {
  struct stat about {};
  if (fcntl(file, F_GET_SEALS) != seals || fstat(file, &about) != 0) return std::nullopt;
  return static_cast<std::uint64_t>(about.st_size);
}

// What a region takes of memory: a memfd that is still written takes the pages that were touched.
std::uint64_t taken_by(int file, std::uint64_t bytes, memory_kind memory) {
  struct stat about {};
  if (memory != memory_kind::host || fstat(file, &about) != 0) return bytes;
  return static_cast<std::uint64_t>(about.st_blocks) * 512;
}

// Why a client's files cannot be a region, or empty.
std::string fault_of(const packet& made, const std::uint64_t bytes, memory_kind memory, region_use use) {
  if (!made.files[0] || !made.files[1]) return "a region comes as two files";
  if (memory == memory_kind::host) {
    const auto size = sealed_size(made.files[0].get(), use == region_use::leased ? size_seals : all_seals);
    if (!size) return "the memory is not a sealed memfd";
    if (*size < bytes) return "the memory has " + std::to_string(*size) + " bytes and not " + std::to_string(bytes);
  }
  const auto size = sealed_size(made.files[1].get());
  if (!size || *size > most_manifest_bytes) return "the manifest is not a sealed memfd of a bearable size";
  return {};
}

} // namespace

server::server(address at, std::function<void(const std::string&)> log, keeper_limits limits)
    : at_(std::move(at)), log_(std::move(log)), limits_(limits), listening_(listen_at(at_.name)) {}

void server::run(int owner) {
  std::vector<pollfd> watched;
  std::vector<connection*> clients;
  while (true) {
    watched = {{owner, POLLIN, 0}, {listening_.get(), POLLIN, 0}};
    clients.clear();
    for (connection& one : connections_) {
      watched.push_back({one.socket.get(), POLLIN, 0});
      clients.push_back(&one);
    }
    if (::poll(watched.data(), watched.size(), poll_timeout(clock::now())) < 0 && errno != EINTR) return;
    if (char byte = 0; watched[0].revents != 0 && ::read(owner, &byte, 1) == 0) return;
    for (std::size_t i = 0; i < clients.size(); ++i) {
      if (watched[i + 2].revents != 0) read_from(*clients[i]);
    }
    pass_time(clock::now());
    drop_ended();
    if (watched[1].revents != 0) accept_client();
  }
}

int server::poll_timeout(clock::time_point now) const {
  std::optional<clock::time_point> first;
  for (const connection& one : connections_) {
    const bool timed = one.now == stage::fresh || one.now == stage::waiting;
    if (timed && (!first || one.due < *first)) first = one.due;
  }
  if (!first) return -1;
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(*first - now).count();
  return static_cast<int>(std::clamp<std::int64_t>(left + 1, 0, 60'000));
}

void server::accept_client() {
  file_descriptor socket(::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket) {
    if (errno == EMFILE || errno == ENFILE) std::this_thread::sleep_for(std::chrono::milliseconds(50)); // it stays acceptable
    return;
  }
  const auto peer = peer_of(socket.get());
  if (!peer || peer->uid != ::geteuid())
    return log_("a connection of another user (uid " + std::to_string(peer ? peer->uid : 0) + ") was closed");
  if (connections_.size() >= limits_.connections) return log_("a connection was closed: there are " + std::to_string(limits_.connections));
  connections_.push_back({std::move(socket), peer->pid, stage::fresh, 0, 0, clock::now() + limits_.first_packet});
}

void server::read_from(connection& from) {
  if (from.now == stage::done) return;
  packet got;
  const reception how = receive_packet(from.socket.get(), got);
  if (how == reception::closed) {
    from.now = stage::done;
    return forget(from);
  }
  if (how == reception::malformed) return refuse(from, "a packet that is none of this protocol's");
  if (got.head.version != protocol_version) {
    return refuse(from,
                  "the keeper speaks version " + std::to_string(protocol_version) + ", the client " + std::to_string(got.head.version));
  }
  if (!same_token(got.head.token, at_.token)) return refuse(from, "the token is not this keeper's");
  if (got.head.kind == message_kind::seal && from.now == stage::filling) return seal(from, got);
  if (from.now != stage::fresh) return refuse(from, "a packet out of turn");
  if (got.head.kind == message_kind::claim) return claim(from, got.head);
  if (got.head.kind == message_kind::query) return count(from, got.head.slot);
  refuse(from, "a packet out of turn");
}

void server::claim(connection& from, const message& wanted) {
  if (wanted.bytes == 0 || wanted.bytes > most_region_bytes) return refuse(from, "a region of " + std::to_string(wanted.bytes) + " bytes");
  if (wanted.memory != memory_kind::host && wanted.memory != memory_kind::cuda) return refuse(from, "memory of an unknown kind");
  if (wanted.use != region_use::constant && wanted.use != region_use::leased) return refuse(from, "a region of an unknown use");
  from.slot = wanted.slot;
  from.name = wanted.name;
  auto held = regions_.find(wanted.slot);
  if (held != regions_.end() && held->second.name != wanted.name) {
    if (held->second.filler == nullptr)
      log_("a region of " + std::to_string(held->second.bytes) + " bytes is given back: another takes its place");
    regions_.erase(held);
    held = regions_.end();
  }
  if (held == regions_.end()) {
    if (regions_.size() >= limits_.regions) return refuse(from, "there are " + std::to_string(regions_.size()) + " regions already");
    const auto available = wanted.memory == memory_kind::host ? cpu::available_memory() : std::nullopt;
    if (available && wanted.bytes > *available) {
      return refuse(from, "no room for " + std::to_string(wanted.bytes) + " bytes: " + std::to_string(*available) + " are available");
    }
    region& made = regions_[wanted.slot];
    made.name = wanted.name;
    made.bytes = wanted.bytes;
    made.memory = wanted.memory;
    made.use = wanted.use;
    return let_fill(from, made);
  }
  if (held->second.use != wanted.use) return refuse(from, "the region is of another use");
  if (held->second.filler == nullptr && held->second.lessee == nullptr) return give(from, held->second);
  from.now = stage::waiting;
  from.due = clock::now(); // the first notice goes out at once
}

void server::let_fill(connection& by, region& empty) {
  by.now = stage::filling;
  empty.filler = &by;
  message what;
  what.kind = message_kind::fill;
  answer(by, what);
}

void server::seal(connection& from, packet& made) {
  const auto held = regions_.find(from.slot);
  if (held == regions_.end() || held->second.filler != &from)
    return refuse(from, "the region is no longer this client's: another name was claimed");
  region& mine = held->second;
  if (const std::string fault = fault_of(made, mine.bytes, mine.memory, mine.use); !fault.empty()) return refuse(from, fault);
  mine.filler = nullptr;
  mine.data = std::move(made.files[0]);
  mine.manifest = std::move(made.files[1]);
  if (mine.use == region_use::constant) ++sealed_;
  log_("process " + std::to_string(from.pid) + " left " + std::to_string(mine.bytes) + " bytes");
  message what;
  what.kind = message_kind::sealed;
  answer(from, what);
  from.now = stage::done;
  if (mine.use == region_use::leased) return lease(from, mine);
  serve_waiting(from.slot);
}

void server::give(connection& to, region& held) {
  message what;
  what.kind = message_kind::complete;
  what.bytes = held.bytes;
  if (held.use == region_use::constant) ++handed_out_;
  to.now = stage::done;
  if (held.use == region_use::leased) lease(to, held);
  answer(to, what, &held);
}

void server::lease(connection& to, region& held) {
  to.now = stage::leasing;
  held.lessee = &to;
}

void server::count(connection& from, std::uint64_t slot) {
  message what;
  what.kind = message_kind::counts;
  for (const auto& [number, held] : regions_) {
    if (held.filler != nullptr) continue;
    if (held.use == region_use::constant) what.kept_bytes += held.bytes;
    ++what.regions;
    if (number == slot) what.bytes = taken_by(held.data.get(), held.bytes, held.memory);
  }
  what.handed_out = handed_out_;
  what.sealed = sealed_;
  answer(from, what);
  from.now = stage::done;
}

// A client that takes nothing is dropped: the socket has room for many such packets.
void server::answer(connection& to, message what, const region* files) {
  what.slot = to.slot;
  what.name = to.name;
  const bool sent =
      files != nullptr ? send_packet(to.socket.get(), what, files->data.get(), files->manifest.get()) : send_packet(to.socket.get(), what);
  if (sent) return;
  to.now = stage::done;
  forget(to);
}

void server::refuse(connection& from, const std::string& reason) {
  log_("process " + std::to_string(from.pid) + " was refused: " + reason);
  message what;
  what.kind = message_kind::refused;
  std::memcpy(what.reason, reason.data(), std::min(reason.size(), sizeof what.reason - 1));
  send_packet(from.socket.get(), what);
  from.now = stage::done;
  forget(from);
}

// It fills or leases nothing any more.
void server::forget(const connection& gone) {
  const auto held = regions_.find(gone.slot);
  if (held == regions_.end()) return;
  if (held->second.lessee == &gone) {
    held->second.lessee = nullptr;
    return serve_waiting(gone.slot);
  }
  if (held->second.filler != &gone) return;
  log_("process " + std::to_string(gone.pid) + " ended before its region of " + std::to_string(held->second.bytes) + " bytes was complete");
  held->second.filler = nullptr;
  for (connection& next : connections_) {
    if (next.now == stage::waiting && next.slot == gone.slot && next.name == held->second.name) return let_fill(next, held->second);
  }
  regions_.erase(held);
}

void server::serve_waiting(std::uint64_t slot) {
  region& held = regions_[slot];
  for (connection& one : connections_) {
    if (held.lessee == nullptr && one.now == stage::waiting && one.slot == slot && one.name == held.name) give(one, held);
  }
}

void server::pass_time(clock::time_point now) {
  for (connection& one : connections_) {
    if (one.due > now) continue;
    if (one.now == stage::fresh) one.now = stage::done;
    if (one.now != stage::waiting) continue;
    const auto held = regions_.find(one.slot);
    if (held == regions_.end() || held->second.name != one.name) {
      refuse(one, "another name was claimed in this place");
      continue;
    }
    one.due = now + limits_.wait_notice;
    message what;
    what.kind = message_kind::wait;
    answer(one, what);
  }
}

void server::drop_ended() {
  connections_.remove_if([](const connection& one) { return one.now == stage::done; });
}

} // namespace troupe::keeper
