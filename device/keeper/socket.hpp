// Packets with files over Unix sockets in the abstract namespace: nothing on disk, and gone with the last process that has them open.
#pragma once

#include <sys/types.h>

#include <array>
#include <chrono>
#include <optional>
#include <string>

#include "device/keeper/file_descriptor.hpp"
#include "device/keeper/message.hpp"

namespace troupe::keeper {

// Where a keeper listens, and what shows it that a client was sent by its owner. Neither holds spaces.
struct address {
  std::string name;  // at most 100 characters
  std::string token; // at most 39
};
// A name and a token of 128 random bits each.
address random_address();

struct packet {
  message head;
  std::array<file_descriptor, files_per_region> files; // as many as came, the first ones
};

// Throw std::runtime_error with the system's reason.
file_descriptor listen_at(const std::string& name);
// Waits up to `patience` for somebody to listen there. Sends and receives on the socket end after `silence`.
file_descriptor connect_to(const std::string& name, std::chrono::milliseconds patience, std::chrono::milliseconds silence);

// False when the peer is gone or takes nothing. Files beyond the first empty one are not sent.
bool send_packet(int socket, const message& head, int first_file = -1, int second_file = -1);

enum class reception : std::uint8_t { whole, closed, malformed }; // closed: also silence or an error
reception receive_packet(int socket, packet& into);

struct peer {
  pid_t pid = 0;
  uid_t uid = 0;
};
std::optional<peer> peer_of(int socket);

} // namespace troupe::keeper
