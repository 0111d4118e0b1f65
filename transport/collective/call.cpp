#include "transport/collective/call.hpp"

namespace troupe {
namespace {

std::string elements(std::uint64_t count, dtype type) { return std::to_string(count) + " " + std::string(traits(type).name); }

} // namespace

std::string describe(const collective_call& call) {
  switch (call.op) {
    case collective_op::form:
      return "the forming of the group";
    case collective_op::all_reduce:
      return "all_reduce of " + elements(call.count, call.type);
    case collective_op::all_gather:
      return "all_gather of " + elements(call.count, call.type) + " of each rank";
    case collective_op::broadcast:
      return "broadcast of " + elements(call.count, call.type) + " from rank " + std::to_string(call.root);
    case collective_op::message:
      return "a message of " + elements(call.count, call.type) + " from rank " + std::to_string(call.root);
  }
  return "an unknown call";
}

group_fault abort_of(int rank, std::string_view reason) {
  return {collective_fault::aborted, rank, "rank " + std::to_string(rank) + " aborted the group: " + std::string(reason)};
}

group_fault mismatch_of(int rank, const collective_call& mine, int peer, const collective_call& theirs) {
  return {collective_fault::mismatch, peer,
          "rank " + std::to_string(rank) + " called " + describe(mine) + ", rank " + std::to_string(peer) + " " + describe(theirs)};
}

std::string objection_to_sum(const collective_buffer& data) {
  if (data.type == dtype::f32 || data.type == dtype::f16 || data.type == dtype::bf16) return {};
  return "all_reduce sums F32, F16 and BF16, not " + std::string(traits(data.type).name);
}

std::string objection_to_gather(const collective_buffer& mine, const collective_buffer& all, int size) {
  if (all.type == mine.type && all.count == mine.count * static_cast<std::size_t>(size)) return {};
  return "all_gather of " + elements(mine.count, mine.type) + " from each of " + std::to_string(size) + " ranks into " +
         elements(all.count, all.type);
}

std::string objection_to_peer(int peer, int rank, int size) {
  if (peer >= 0 && peer < size && peer != rank) return {};
  return "rank " + std::to_string(rank) + " of " + std::to_string(size) + " has no peer " + std::to_string(peer);
}

std::string objection_to_root(int root, int size) {
  if (root >= 0 && root < size) return {};
  return "a broadcast from rank " + std::to_string(root) + " of " + std::to_string(size);
}

} // namespace troupe
