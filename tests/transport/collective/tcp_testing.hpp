// Groups over TCP for tests.
#pragma once

#include "tests/transport/collective/group_testing.hpp"
#include "transport/collective/tcp_group.hpp"

namespace troupe {

// All ranks of a group over loopback.
inline ends make_tcp_group(int size, std::chrono::milliseconds deadline) {
  tcp_options options;
  options.deadline = deadline;
  tcp_rendezvous rendezvous(options);
  ends group(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 1; rank < size; ++rank) {
    threads.emplace_back([&, rank] { group[static_cast<std::size_t>(rank)] = join_tcp_group(rendezvous.address(), rank, size, options); });
  }
  group[0] = rendezvous.form(size);
  for (auto& thread : threads) thread.join();
  return group;
}

} // namespace troupe
