// A group of GPUs joined by NCCL, one rank a process (or thread) and GPU.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "device/cuda/stream.hpp"
#include "transport/collective/communicator.hpp"

namespace troupe::cuda {

// ncclUniqueId as plain data: rank 0 makes it, the others are told it in a message.
struct nccl_group_id {
  std::array<std::uint8_t, 128> bytes{};
};

struct nccl_options {
  std::string name = "group"; // in the messages of errors: "tp0"
  std::string interface;      // for NCCL's sockets, see nccl_settings(); empty: NCCL's choice, for the GPUs of one machine
  bool across_nodes = false;  // ranks on several machines
  std::chrono::milliseconds form_deadline{20'000};
  std::chrono::milliseconds deadline{2'000};       // of queueing a call, and of wait()
  std::chrono::milliseconds abort_deadline{5'000}; // for NCCL to come back from an abort
};

// Whoever makes the id must live until the group has formed: NCCL listens in its process. Throws collective_error (failed), and
// std::invalid_argument as nccl_settings() does. NCCL reads the environment once in a process, so the first options decide there; the first
// call of this or of join_nccl_group() sets variables, and no other thread may read the environment meanwhile.
nccl_group_id make_nccl_group_id(const nccl_options& options);

// Calls queue work on the caller's stream and may be captured in a graph, which must be destroyed before the communicator. All ranks get
// the same bits from a sum, but NCCL adds in the order of its own rings and in the type of the elements. A fault in work that is already
// queued shows in wait(), which then aborts: queued work ends, streams and device stay usable.
class nccl_communicator : public communicator {
 public:
  virtual std::chrono::milliseconds deadline() const = 0; // of queueing a call, and of wait()
  // The same as wait(), for what was recorded on a stream: work queued behind it may go on.
  virtual void wait_for(const event& point) = 0;
  // Called when a fault or abort() ends the group, on that thread, while NCCL aborts: it must destroy all graphs that hold calls of this
  // group, for NCCL waits until there are none. An empty one: there are none any more.
  virtual void when_ended(std::function<void()> destroy_graphs) = 0;
  // Called first when a fault or abort() ends the group, on that thread: kernels of the owner's own that wait for peers must let go, for no
  // call into CUDA may come back before they do. It returns at once. An empty one: there are none.
  virtual void before_end(std::function<void()> let_go) = 0;
  // NCCL did not come back from an abort in time. Nothing of it can be used or freed any more: the process must be ended.
  virtual bool is_stuck() const = 0;
};

// A rank on its way into a group: NCCL joins on a thread of its own, while the owner does what needs no peer.
class nccl_joining {
 public:
  // Begins on the current device of this thread. Throws collective_error, std::invalid_argument.
  nccl_joining(const nccl_group_id& id, int rank, int size, const nccl_options& options);
  ~nccl_joining(); // what was not finished is aborted
  // Returns when all ranks have joined and a first sum has given what it must; on any thread, once. Throws collective_error.
  std::unique_ptr<nccl_communicator> finish();
  // finish() throws, now or when it is called; from any thread.
  void abort(std::string_view reason) noexcept;

 private:
  class state;
  std::shared_ptr<state> state_;
};

// Loads into this process what a first group must wait for, NCCL's kernels above all: a group of one rank joins and ends. On the current
// device. Throws collective_error, std::invalid_argument.
void load_nccl(const nccl_options& options);

// Both at once.
std::unique_ptr<nccl_communicator> join_nccl_group(const nccl_group_id& id, int rank, int size, const nccl_options& options);

} // namespace troupe::cuda
