// Groups over TCP whose ranks are of this process.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <thread>
#include <vector>

#include "transport/collective/tcp_group.hpp"

namespace troupe {

// All ranks' ends of a group over loopback, by rank.
inline std::vector<std::unique_ptr<communicator>> make_tcp_group(int size, std::chrono::milliseconds deadline) {
  tcp_options options;
  options.deadline = deadline;
  tcp_rendezvous rendezvous(options);
  std::vector<std::unique_ptr<communicator>> group(static_cast<std::size_t>(size));
  std::vector<std::jthread> threads;
  for (int rank = 1; rank < size; ++rank) {
    threads.emplace_back([&, rank] { group[static_cast<std::size_t>(rank)] = join_tcp_group(rendezvous.address(), rank, size, options); });
  }
  group[0] = rendezvous.form(size);
  threads.clear(); // joins
  return group;
}

} // namespace troupe
