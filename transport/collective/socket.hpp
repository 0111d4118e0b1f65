// Sockets as their owner sees them: non-blocking, every wait up to a point in time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

namespace troupe {

using deadline_clock = std::chrono::steady_clock;

class descriptor {
 public:
  descriptor() = default;
  explicit descriptor(int number) : number_(number) {}
  ~descriptor() { close(); }
  descriptor(descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  descriptor& operator=(descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }

  int number() const { return number_; }
  explicit operator bool() const { return number_ >= 0; }
  void close() noexcept;

 private:
  int number_ = -1;
};

// A numeric address, v4 or v6, and a port.
struct endpoint {
  std::string host;
  std::uint16_t port = 0;
};

std::string to_text(const endpoint& at); // "10.0.0.1:4711", "[fd00::1]:4711"

// All three throw std::system_error that names the endpoint.
descriptor listen_at(const endpoint& at, int backlog);
endpoint local_endpoint(const descriptor& socket);
// From an address of this machine, so that the connection leaves through the interface that was chosen. TCP_NODELAY is set.
descriptor connect_to(const endpoint& peer, const std::string& from, deadline_clock::time_point until);

// The next connection that waits at a listener, with TCP_NODELAY; empty when none does. `peer` becomes its other end.
descriptor accept_from(const descriptor& listener, endpoint& peer);

// True when one of poll(2)'s `events`, an error or the other side's end has come before `until`.
bool wait_until_ready(const descriptor& socket, short events, deadline_clock::time_point until);

// poll(2)'s time-out until then: rounded up to milliseconds, never negative.
int milliseconds_until(deadline_clock::time_point until);

enum class transfer : std::uint8_t { done, late, closed };
// The whole of `data`. closed: the other side has ended the connection.
transfer read_all(const descriptor& socket, std::span<std::byte> data, deadline_clock::time_point until);
transfer write_all(const descriptor& socket, std::span<const std::byte> data, deadline_clock::time_point until);

} // namespace troupe
