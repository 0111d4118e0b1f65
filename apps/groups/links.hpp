// How one rank of a group finds the others: between threads of this process, or over TCP between processes.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "actors/serving.hpp"
#include "models/rank_context.hpp"
#include "transport/collective/tcp_group.hpp"

namespace troupe::apps {

struct group_layout {
  int tp_size = 1;
  int stages = 1;
  bool processes = false;                          // a process per rank; else threads of this one
  std::string interface = "127.0.0.1";             // that this rank's links go through (see choose_interface()); of processes
  bool across_nodes = false;                       // ranks may be on several machines
  std::chrono::milliseconds form_deadline{10'000}; // until all ranks are there
  std::chrono::milliseconds call_deadline{10'000}; // of each collective
  bool cluster = false;                            // NCCL, too, goes through the interface
};

// A rank on its way into its group. Rank 0 has published where to meet when the constructor is done, so that all ranks may load their
// weights before they meet.
class group_link {
 public:
  virtual ~group_link() = default;
  // Waits for all ranks; once. Throws collective_error.
  virtual rank_context meet() = 0;
};

class group_links {
 public:
  explicit group_links(const group_layout& layout);
  ~group_links();
  // Throws std::runtime_error when the rendezvous is none of this group's, and what sockets throw.
  std::unique_ptr<group_link> open(const actors::rank_start& place, const actors::publish_rendezvous& publish);

 private:
  struct local_groups;
  group_layout layout_;
  std::shared_ptr<local_groups> local_; // of all replicas
};

// "127.0.0.1 4711 00112233445566778899aabbccddeeff". The second throws std::invalid_argument.
std::string to_text(const tcp_address& address);
tcp_address parse_tcp_address(const std::string& text);

} // namespace troupe::apps
