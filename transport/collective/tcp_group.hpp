// A group over TCP: ranks in processes of one machine or of several.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "transport/collective/communicator.hpp"

namespace troupe {

inline constexpr int kMaxTcpRanks = 512; // of a group

// Where a group meets: plain data that travels in a message. The token is the group's own; who does not know it is not let in. It is no
// secret on the wire: nothing here is encrypted, so the interface belongs to a network that is trusted.
struct tcp_address {
  std::string host; // numeric
  std::uint16_t port = 0;
  std::array<std::uint8_t, 16> token{};
};

struct tcp_options {
  std::string name = "group";                      // in the messages of errors: "tp0"
  std::string interface = "127.0.0.1";             // see choose_interface()
  bool across_nodes = false;                       // ranks on several machines
  std::chrono::milliseconds form_deadline{10'000}; // from here until every rank is connected with every other
  std::chrono::milliseconds deadline{2'000};       // of each call
};

// Rank 0's end: listens from construction on, at a free port, so that the address can be told to the others.
// Throws std::invalid_argument for an interface that will not do, std::system_error when it cannot listen.
class tcp_rendezvous {
 public:
  explicit tcp_rendezvous(tcp_options options);
  ~tcp_rendezvous();
  tcp_rendezvous(const tcp_rendezvous&) = delete;
  tcp_rendezvous& operator=(const tcp_rendezvous&) = delete;

  const tcp_address& address() const;
  // Waits for ranks 1 .. size - 1 and returns rank 0's communicator; once. Connections of anybody else are closed and change nothing.
  // Throws collective_error: deadline naming the ranks that are missing, peer_lost when one leaves meanwhile, or what another rank reports.
  std::unique_ptr<communicator> form(int size);

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

// Any other rank's end. Throws as above, and collective_error (failed) with rank 0's words where it is refused: another size, a rank that
// is taken, another version of the protocol.
std::unique_ptr<communicator> join_tcp_group(const tcp_address& address, int rank, int size, const tcp_options& options);

} // namespace troupe
