#include "transport/collective/socket.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace troupe {
namespace {

struct socket_address {
  sockaddr_storage storage{};
  socklen_t size = 0;
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

[[noreturn]] void fail(int error, const std::string& what) { throw std::system_error(error, std::generic_category(), what); }

socket_address address_of(const endpoint& at) {
  socket_address out;
  auto& v4 = reinterpret_cast<sockaddr_in&>(out.storage);
  auto& v6 = reinterpret_cast<sockaddr_in6&>(out.storage);
  if (inet_pton(AF_INET, at.host.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    v4.sin_port = htons(at.port);
    out.size = sizeof v4;
  } else if (inet_pton(AF_INET6, at.host.c_str(), &v6.sin6_addr) == 1) {
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(at.port);
    out.size = sizeof v6;
  } else {
    fail(EINVAL, "'" + at.host + "' is no numeric address");
  }
  return out;
}

endpoint endpoint_of(const sockaddr_storage& storage) {
  char text[INET6_ADDRSTRLEN] = {};
  if (storage.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(storage);
    inet_ntop(AF_INET, &v4.sin_addr, text, sizeof text);
    return {text, ntohs(v4.sin_port)};
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(storage);
  inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof text);
  return {text, ntohs(v6.sin6_port)};
}

descriptor make_socket(int family) {
  descriptor made(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!made) fail(errno, "socket");
  return made;
}

void send_at_once(const descriptor& socket) {
  const int on = 1;
  setsockopt(socket.number(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

// Calls `move` with what is left until all has gone through.
template <class Byte, class Move>
transfer move_all(const descriptor& socket, std::span<Byte> data, short events, deadline_clock::time_point until, Move move) {
  while (!data.empty()) {
    const ssize_t moved = move(data);
    if (moved > 0) {
      data = data.subspan(static_cast<std::size_t>(moved));
    } else if (moved == 0 || (errno != EAGAIN && errno != EINTR)) {
      return transfer::closed;
    } else if (errno == EAGAIN && !wait_until_ready(socket, events, until)) {
      return transfer::late;
    }
  }
  return transfer::done;
}

} // namespace

void descriptor::close() noexcept {
  if (number_ >= 0) ::close(std::exchange(number_, -1));
}

std::string to_text(const endpoint& at) {
  const bool v6 = at.host.find(':') != std::string::npos;
  return (v6 ? "[" + at.host + "]" : at.host) + ":" + std::to_string(at.port);
}

descriptor listen_at(const endpoint& at, int backlog) {
  auto address = address_of(at);
  descriptor made = make_socket(address.storage.ss_family);
  if (::bind(made.number(), address.get(), address.size) != 0 || ::listen(made.number(), backlog) != 0)
    fail(errno, "cannot listen at " + to_text(at));
  return made;
}

endpoint local_endpoint(const descriptor& socket) {
  socket_address own;
  own.size = sizeof own.storage;
  if (getsockname(socket.number(), own.get(), &own.size) != 0) fail(errno, "getsockname");
  return endpoint_of(own.storage);
}

descriptor connect_to(const endpoint& peer, const std::string& from, deadline_clock::time_point until) {
  const std::string what = "cannot reach " + to_text(peer) + " from " + from;
  auto own = address_of({from, 0});
  auto other = address_of(peer);
  descriptor made = make_socket(other.storage.ss_family);
  const int on = 1; // the port is chosen when the connection is made
  setsockopt(made.number(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
  if (::bind(made.number(), own.get(), own.size) != 0) fail(errno, what);
  if (::connect(made.number(), other.get(), other.size) != 0) {
    if (errno != EINPROGRESS) fail(errno, what);
    if (!wait_until_ready(made, POLLOUT, until)) fail(ETIMEDOUT, what);
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(made.number(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) fail(error, what);
  }
  send_at_once(made);
  return made;
}

descriptor accept_from(const descriptor& listener, endpoint& peer) {
  socket_address other;
  other.size = sizeof other.storage;
  descriptor accepted(::accept4(listener.number(), other.get(), &other.size, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!accepted) return accepted;
  peer = endpoint_of(other.storage);
  send_at_once(accepted);
  return accepted;
}

int milliseconds_until(deadline_clock::time_point until) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - deadline_clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1'000'000));
}

bool wait_until_ready(const descriptor& socket, short events, deadline_clock::time_point until) {
  for (;;) {
    pollfd one{socket.number(), events, 0};
    if (::poll(&one, 1, milliseconds_until(until)) > 0) return true;
    if (deadline_clock::now() >= until) return false;
  }
}

transfer read_all(const descriptor& socket, std::span<std::byte> data, deadline_clock::time_point until) {
  return move_all(socket, data, POLLIN, until,
                  [&](std::span<std::byte> left) { return ::recv(socket.number(), left.data(), left.size(), 0); });
}

transfer write_all(const descriptor& socket, std::span<const std::byte> data, deadline_clock::time_point until) {
  return move_all(socket, data, POLLOUT, until,
                  [&](std::span<const std::byte> left) { return ::send(socket.number(), left.data(), left.size(), MSG_NOSIGNAL); });
}

} // namespace troupe
