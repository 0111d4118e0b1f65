// What the ranks of a group do together: sums, gathers, messages between two. One interface for ranks in one process, over TCP, and NCCL.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

#include "core/collective_fault.hpp"
#include "core/dtype.hpp"

namespace troupe {

class collective_error : public std::runtime_error {
 public:
  collective_error(collective_fault fault, int peer, const std::string& what) : std::runtime_error(what), fault_(fault), peer_(peer) {}
  collective_fault fault() const { return fault_; }
  int peer() const { return peer_; } // -1: not known

 private:
  collective_fault fault_;
  int peer_;
};

// Elements in host memory, or in device memory for a communicator of devices.
struct collective_buffer {
  void* data = nullptr;
  std::size_t count = 0;
  dtype type = dtype::f32;
};

// A CUDA stream for a communicator of devices, whose calls only queue work on it; null on the host, where calls return when all is done.
using collective_stream = void*;

// Since the last take_times(). Waiting and moving are told apart on the host alone.
struct collective_times {
  std::uint64_t calls = 0;
  std::uint64_t bytes = 0;
  std::uint64_t wait_ns = 0; // until the last peer had come
  std::uint64_t move_ns = 0; // the rest of the calls
};

// One rank's end. Every rank calls the same things in the same order, from one thread; abort() may come from any. A call that cannot be
// completed within the deadline throws collective_error, and from then on every call of every rank does: a group is made anew.
class communicator {
 public:
  virtual ~communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Each element becomes the sum over all ranks, added up in the order of ranks in f32: the same bits on every rank. In place.
  virtual void all_reduce(collective_buffer data, collective_stream stream = nullptr) = 0;
  // all: [size][mine.count]; `mine` may lie in it at its own place.
  virtual void all_gather(collective_buffer mine, collective_buffer all, collective_stream stream = nullptr) = 0;
  virtual void broadcast(collective_buffer data, int root, collective_stream stream = nullptr) = 0;
  // Messages between two ranks arrive in order, also among the collectives of both; sizes must agree. A host's send may return before the
  // peer has received, as far as there is room: two ranks that both send much before they receive wait for each other.
  virtual void send(collective_buffer data, int peer, collective_stream stream = nullptr) = 0;
  virtual void receive(collective_buffer data, int peer, collective_stream stream = nullptr) = 0;

  // Returns when all work queued on `stream` is done, watching over the peers meanwhile: throws collective_error when that takes longer
  // than the deadline or a peer is found lost. On the host there is nothing to wait for.
  virtual void wait(collective_stream /*stream*/) {}

  virtual void abort(std::string_view reason) noexcept = 0;
  virtual collective_times take_times() = 0;
};

} // namespace troupe
