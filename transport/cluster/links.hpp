// A node's connections to the head of its cluster: each a port on loopback here that leads to a port on loopback there, by way of the head's
// gate. So actors on both machines talk as if they were on one.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include "transport/cluster/credentials.hpp"
#include "transport/cluster/handshake.hpp"

namespace troupe::cluster {

struct link_options {
  std::string host; // a name or an address
  std::uint16_t port = 0;
  credentials who;
  identity program;
};

// The head has said no, or is not who it should be: trying again changes nothing. what() is a sentence.
struct refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Thread-safe.
class links {
 public:
  // Throws std::invalid_argument for credentials that will not do.
  explicit links(link_options options);
  ~links(); // ends every connection
  links(const links&) = delete;
  links& operator=(const links&) = delete;

  struct route {
    std::string from, to; // the addresses of this machine and of the head, numeric
  };
  // Connects, proves itself, and hangs up: at most 5 s. Throws refused, and std::runtime_error where the head cannot be reached.
  route probe();
  // A port on loopback for one connection, which is led to `purpose` of the head (handshake.hpp); it closes after 60 s without one. That
  // connection breaks off where the head cannot be reached, or refuses.
  std::uint16_t open(const std::string& purpose);

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

} // namespace troupe::cluster
