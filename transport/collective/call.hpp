// What one rank called, and what became of a group: the words that all kinds of communicators share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "transport/collective/communicator.hpp"

namespace troupe {

enum class collective_op : std::uint8_t {
  form, // nothing is moved: every rank says that it is there
  all_reduce,
  all_gather,
  broadcast,
  message, // a send, and the receive that belongs to it
};

// Ranks whose calls differ cannot work together.
struct collective_call {
  collective_op op = collective_op::form;
  dtype type = dtype::f32;
  std::uint64_t count = 0;
  int root = 0; // of a broadcast, and the sender of a message

  friend bool operator==(const collective_call&, const collective_call&) = default;
};

// "all_reduce of 4096 F32", "broadcast of 3 I32 from rank 0"
std::string describe(const collective_call& call);

inline std::size_t bytes_of(const collective_buffer& buffer) { return row_bytes(buffer.type, buffer.count); }

// The end of a group, the same for all its ranks.
struct group_fault {
  collective_fault fault = collective_fault::failed;
  int peer = -1;
  std::string text;

  [[noreturn]] void raise() const { throw collective_error(fault, peer, text); }
};

group_fault abort_of(int rank, std::string_view reason); // rank's owner called abort()
group_fault mismatch_of(int rank, const collective_call& mine, int peer, const collective_call& theirs);

// Empty, or why a rank of `size` cannot make such a call: a type that cannot be summed, buffers that do not fit, a peer that is none.
std::string objection_to_sum(const collective_buffer& data);
std::string objection_to_gather(const collective_buffer& mine, const collective_buffer& all, int size);
std::string objection_to_peer(int peer, int rank, int size);
std::string objection_to_root(int root, int size);

} // namespace troupe
