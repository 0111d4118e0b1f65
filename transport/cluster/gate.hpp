// The head's door to its cluster: the one port that other machines can reach. A connection proves first who it is (handshake.hpp); only then
// is it led to a port on loopback, where actors listen that trust what they are sent. So no byte of a stranger reaches them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "transport/cluster/credentials.hpp"
#include "transport/cluster/handshake.hpp"

namespace troupe::cluster {

struct gate_options {
  std::string address;    // numeric, of this machine
  std::uint16_t port = 0; // 0: any free one
  credentials who;
  identity program;
  bool any_build = false;                           // other versions and builds of the same protocol are let in, too
  std::function<void(const std::string& line)> log; // who was refused, and why: one line a second at most; may be empty
  std::function<void()> refused;                    // each time; may be empty
};

// Thread-safe. Who says nothing is closed after 5 s, who is not a peer at once; at most 64 connections are on their way in at a time.
class gate {
 public:
  // Listens from here on. Throws std::invalid_argument for credentials that will not do, std::runtime_error when it cannot listen.
  explicit gate(gate_options options);
  ~gate(); // ends every connection
  gate(const gate&) = delete;
  gate& operator=(const gate&) = delete;

  std::uint16_t port() const;
  // Where who joins is led; until then his connection is closed, and he tries again.
  void lead_join_to(std::uint16_t local_port);
  // Ranks may come to this port, or no more: connections that exist stay.
  void open(std::uint16_t local_port);
  void close(std::uint16_t local_port);

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

} // namespace troupe::cluster
