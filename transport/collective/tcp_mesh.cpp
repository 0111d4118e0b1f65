#include "transport/collective/tcp_mesh.hpp"

#include <cstring>
#include <random>
#include <system_error>

#include "transport/collective/tcp_reception.hpp"
#include "transport/collective/tcp_wire.hpp"

namespace troupe {
namespace {

wire::introduction introduction_of(const tcp_meeting& meeting) {
  wire::introduction hello;
  hello.rank = meeting.rank;
  hello.size = meeting.size;
  hello.token = meeting.token;
  std::random_device random;
  for (auto& byte : hello.visitor) byte = static_cast<std::uint8_t>(random());
  if (meeting.listener) wire::set_endpoint(hello, local_endpoint(meeting.listener));
  return hello;
}

tcp_link introduce(wire::introduction hello, int peer, const endpoint& at, const tcp_meeting& meeting) {
  tcp_link link;
  link.name = "rank " + std::to_string(peer) + " at " + to_text(at);
  try {
    for (const auto lane : {wire::lane::data, wire::lane::notices}) {
      hello.lane = lane;
      descriptor socket = connect_to(at, meeting.from, meeting.until);
      if (write_all(socket, std::as_bytes(std::span(&hello, 1)), meeting.until) != transfer::done) {
        throw std::system_error(std::make_error_code(std::errc::connection_reset), link.name);
      }
      (lane == wire::lane::data ? link.data : link.notices) = std::move(socket);
    }
  } catch (const std::system_error& e) {
    const bool late = deadline_clock::now() >= meeting.until;
    throw collective_error(late ? collective_fault::deadline : collective_fault::peer_lost, peer,
                           "rank " + std::to_string(meeting.rank) + " and " + link.name + ": " + e.what());
  }
  return link;
}

std::vector<endpoint> wait_for_table(const tcp_link& root, const tcp_meeting& meeting) {
  const auto heard = wire::read_notice(root.notices, meeting.until);
  if (!heard && deadline_clock::now() >= meeting.until) {
    throw collective_error(collective_fault::deadline, 0,
                           "rank " + std::to_string(meeting.rank) + " waited " + std::to_string(meeting.patience.count()) + " ms for " +
                               root.name + " to say that the group is complete");
  }
  if (!heard) {
    throw collective_error(collective_fault::peer_lost, 0,
                           root.name + " closed the connection: it has ended, or another group meets there (the token is not its own)");
  }
  if (heard->kind == wire::notice_kind::refusal) {
    throw collective_error(
        collective_fault::failed, 0,
        root.name + " refused rank " + std::to_string(meeting.rank) + " of " + std::to_string(meeting.size) + ": " + heard->fault.text);
  }
  if (heard->kind == wire::notice_kind::fault) heard->fault.raise();
  if (heard->endpoints.size() != static_cast<std::size_t>(meeting.size)) {
    throw collective_error(collective_fault::failed, 0, root.name + " told of " + std::to_string(heard->endpoints.size()) + " ranks");
  }
  return heard->endpoints;
}

// Calls `meet` with the links to fill; who is connected already hears of a failure.
template <class Meet>
std::vector<tcp_link> meet(const tcp_meeting& meeting, Meet meet) {
  std::vector<tcp_link> links(static_cast<std::size_t>(meeting.size));
  try {
    meet(links);
  } catch (const collective_error& e) {
    tell_all(links, {e.fault(), e.peer(), e.what()});
    throw;
  }
  return links;
}

} // namespace

void tell_all(const std::vector<tcp_link>& links, const group_fault& fault) noexcept {
  for (const tcp_link& link : links) {
    if (link.notices) wire::send_fault(link.notices, fault);
  }
}

std::vector<tcp_link> meet_as_root(const tcp_meeting& meeting) {
  return meet(meeting, [&](std::vector<tcp_link>& links) {
    tcp_reception reception(meeting, links);
    reception.run();
    for (std::size_t rank = 1; rank < links.size(); ++rank) {
      if (wire::send_table(links[rank].notices, reception.listening(), meeting.until)) continue;
      throw collective_error(collective_fault::peer_lost, static_cast<int>(rank), links[rank].name + " left while the group was forming");
    }
  });
}

std::vector<tcp_link> meet_at(const tcp_address& root, const tcp_meeting& meeting) {
  return meet(meeting, [&](std::vector<tcp_link>& links) {
    const auto hello = introduction_of(meeting);
    links[0] = introduce(hello, 0, {root.host, root.port}, meeting);
    const auto listening = wait_for_table(links[0], meeting);
    for (int peer = 1; peer < meeting.rank; ++peer) {
      const auto index = static_cast<std::size_t>(peer);
      links[index] = introduce(hello, peer, listening[index], meeting);
    }
    tcp_reception(meeting, links).run();
  });
}

} // namespace troupe
