// Moves frames between one rank and its peers, all of one call at the same time, by the calling thread itself.
#pragma once

#include <poll.h>

#include <atomic>
#include <cstddef>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "transport/collective/call.hpp"
#include "transport/collective/tcp_mesh.hpp"
#include "transport/collective/tcp_wire.hpp"

namespace troupe {

class tcp_exchange {
 public:
  struct outgoing {
    int peer = 0;
    std::span<const std::byte> payload;
  };
  struct incoming {
    int peer = 0;
    std::span<std::byte> payload;
  };

  tcp_exchange(int rank, std::vector<tcp_link> links, std::chrono::milliseconds deadline);

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(lanes_.size()); }
  std::chrono::milliseconds deadline() const { return deadline_; }

  // One frame to each peer of `out` and one from each of `in`; done when all have gone and come. `phase` counts the exchanges of one
  // call. Returns when the last peer's frame began to come. Throws collective_error: a peer does not do its part before `until`, has
  // gone, called something else, or somebody ended the group.
  deadline_clock::time_point run(const collective_call& call, std::uint16_t phase, std::span<const outgoing> out,
                                 std::span<const incoming> in, deadline_clock::time_point until);

  // Ends the group for all ranks, unless it has ended; from any thread.
  void end(const group_fault& fault) noexcept;
  // Ends it, and throws what ended it.
  [[noreturn]] void end_and_raise(const group_fault& fault);

 private:
  struct half_lane { // one direction of the frames with one peer
    bool active = false;
    wire::frame_header own; // what this rank sends, or expects
    wire::frame_header received;
    std::byte* payload = nullptr; // is not written through where it is sent
    std::size_t bytes = 0;        // of the payload
    std::size_t done = 0;         // of header and payload
    std::size_t whole() const { return sizeof(wire::frame_header) + bytes; }
  };
  struct lane {
    tcp_link link;
    half_lane out, in;
    bool notices_ended = false;
    std::uint64_t sent = 0, received = 0; // messages
  };

  lane& lane_of(int peer) { return lanes_[static_cast<std::size_t>(peer)]; }
  void start(const collective_call& call, std::uint16_t phase, std::span<const outgoing> out, std::span<const incoming> in);
  bool push(int peer);
  bool pull(int peer);
  void check_header(int peer);
  void count_arrival(int peer);
  void sleep(deadline_clock::time_point until);
  void hear(int peer);
  void raise_if_ended();
  [[noreturn]] void late();
  [[noreturn]] void lost(int peer, const std::string& why);

  const int rank_;
  const std::chrono::milliseconds deadline_;
  const bool spins_;
  std::vector<lane> lanes_; // by rank
  collective_call call_;
  std::chrono::milliseconds allowed_{0}; // for it
  std::uint64_t collectives_ = 0;
  std::size_t left_ = 0; // frames of this exchange that are not done
  deadline_clock::time_point all_there_;
  std::vector<pollfd> waiting_;

  descriptor wake_; // an eventfd that end() makes readable
  std::atomic<bool> ended_{false};
  std::mutex fault_mutex_;
  std::optional<group_fault> fault_;
};

} // namespace troupe
