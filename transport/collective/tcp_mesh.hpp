// How ranks come together: each is connected with every other.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "transport/collective/call.hpp"
#include "transport/collective/socket.hpp"
#include "transport/collective/tcp_group.hpp"

namespace troupe {

struct tcp_link {
  descriptor data, notices;
  std::string name; // "rank 2 at 10.0.0.2:40112"
};

// What one rank brings to the meeting.
struct tcp_meeting {
  int rank = 0;
  int size = 1;
  std::array<std::uint8_t, 16> token{};
  std::string from;    // this rank's own address
  descriptor listener; // for ranks above this one
  std::chrono::milliseconds patience{0};
  deadline_clock::time_point until;
};

// One link for each rank; the own one stays empty. Ranks above the own one come to its listener: rank 0 tells every rank where the others
// listen once all have introduced themselves to it. Throws collective_error, and tells those who are connected already.
std::vector<tcp_link> meet_as_root(const tcp_meeting& meeting);
std::vector<tcp_link> meet_at(const tcp_address& root, const tcp_meeting& meeting);

void tell_all(const std::vector<tcp_link>& links, const group_fault& fault) noexcept;

} // namespace troupe
