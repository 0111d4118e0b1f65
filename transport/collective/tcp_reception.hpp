// Who comes to a listener while a group forms, and who is let in.
#pragma once

#include <array>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "transport/collective/tcp_mesh.hpp"
#include "transport/collective/tcp_wire.hpp"

namespace troupe {

// Lets in the ranks above the meeting's own, each with its two connections. Whoever does not know the token, says nothing or sends garbage
// is closed without a word, and nothing else changes; a rank that does not fit is told why.
class tcp_reception {
 public:
  // Fills `links`, and watches those that it holds already: a rank that leaves or reports a fault ends the meeting.
  tcp_reception(const tcp_meeting& meeting, std::vector<tcp_link>& links);

  // Returns when all have come. Throws collective_error.
  void run();
  // Where each rank said that it listens, by rank.
  const std::vector<endpoint>& listening() const { return listening_; }

 private:
  struct visitor {
    descriptor socket;
    endpoint from;
    wire::introduction said;
    std::size_t have = 0; // bytes of it
    deadline_clock::time_point until;
  };

  bool complete() const;
  std::string missing() const;
  int first_missing() const;
  [[noreturn]] void give_up() const;
  void wait_for_somebody();
  void open_doors();
  bool listen_to(visitor& one); // false: done with it
  void let_in(visitor& one);
  std::optional<std::string> objection_to(const visitor& one) const;
  void hear(std::size_t rank) const;
  bool has_come(std::size_t rank) const { return links_[rank].data && links_[rank].notices; }

  const tcp_meeting& meeting_;
  std::vector<tcp_link>& links_;
  std::vector<endpoint> listening_;
  std::vector<std::optional<std::array<std::uint8_t, 8>>> visitors_of_; // whose connection came first, by rank
  std::list<visitor> visitors_;
  deadline_clock::time_point opens_again_; // the listener
  std::size_t refused_ = 0;
};

} // namespace troupe
