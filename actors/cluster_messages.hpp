// What the head of a cluster and its nodes tell each other, and what the head's supervisors hear of it. Part of protocol.hpp.
//
//   node --node_hello--> cluster --node_welcome--> node --node_ready--> cluster --node_change--> every supervisor
//   supervisor --start_worker | stop_worker--> cluster --the same--> node --worker_changed--> cluster --the same--> that supervisor
//   node --leave--> cluster --node_change--> supervisors, and when no group is on it any more: cluster --close--> node
#pragma once

#include <caf/meta/type_name.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "actors/cluster.hpp"
#include "actors/placement.hpp"
#include "actors/program_messages.hpp"

namespace troupe::actors {

struct node_hello {
  node_description about;
};

struct node_welcome {
  head_description head;
};

// It can run so many ranks of that model.
struct node_ready {
  std::int32_t slots = 0;
  std::string device; // for the log
};

// From either side.
struct node_refusal {
  std::string reason;
  bool passing = false; // it may be otherwise in a while
};

// A rank's process is to be started in a slot of `node`, or ended.
struct start_worker {
  node_number node = this_machine;
  std::int32_t replica = 0;
  std::int32_t rank = 0;
  std::uint64_t generation = 0;
  std::int32_t slot = 0;
  std::uint16_t port = 0; // where the group awaits it, on the head's loopback
  std::string token;
  program_number program = 0;
};

struct stop_worker {
  node_number node = this_machine;
  std::int32_t replica = 0;
  std::int32_t rank = 0;
  std::uint64_t generation = 0;
};

// It was stopped, or has ended, or could not be started.
struct worker_changed {
  std::int32_t replica = 0;
  std::int32_t rank = 0;
  std::uint64_t generation = 0;
  std::int32_t status = 0; // as of waitpid
  std::string reason;      // why it could not be started; else empty
};

enum class node_event : std::uint8_t { joined, leaving, lost };

struct node_change {
  node_number node = this_machine;
  std::string name;
  node_event what = node_event::joined;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, node_description& x) {
  return f(caf::meta::type_name("node_description"), x.name, x.instance, x.address, x.loopback, x.memory_bytes);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, head_description& x) {
  return f(caf::meta::type_name("head_description"), x.model, x.device, x.fingerprint, x.arguments);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, node_hello& x) {
  return f(caf::meta::type_name("node_hello"), x.about);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, node_welcome& x) {
  return f(caf::meta::type_name("node_welcome"), x.head);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, node_ready& x) {
  return f(caf::meta::type_name("node_ready"), x.slots, x.device);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, node_refusal& x) {
  return f(caf::meta::type_name("node_refusal"), x.reason, x.passing);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, start_worker& x) {
  return f(caf::meta::type_name("start_worker"), x.node, x.replica, x.rank, x.generation, x.slot, x.port, x.token, x.program);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, stop_worker& x) {
  return f(caf::meta::type_name("stop_worker"), x.node, x.replica, x.rank, x.generation);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, worker_changed& x) {
  return f(caf::meta::type_name("worker_changed"), x.replica, x.rank, x.generation, x.status, x.reason);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, node_change& x) {
  return f(caf::meta::type_name("node_change"), x.node, x.name, x.what);
}

} // namespace troupe::actors
