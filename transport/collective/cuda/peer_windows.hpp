// A window of memory on each GPU of a group into which the others' kernels write: each rank makes one and maps those of its peers.
//
// The memory is CUDA's virtual memory, handed round as file descriptors: a mapping keeps it alive, so that a kernel that is still under way
// when a peer dies or lets go writes to memory that nobody uses, and it does not depend on what becomes of an NCCL communicator. Multicast
// has no part in it.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "device/cuda/pinned_ring.hpp"
#include "device/cuda/shared_block.hpp"
#include "transport/collective/communicator.hpp"

namespace troupe::cuda {

class peer_windows {
 public:
  // Of `bytes` each. All ranks call it, each with the thread's current device, and come to the same: null where any two GPUs have no NVLink
  // between them, the user's settings of NCCL forbid it or something fails, and then `objection` says why. Throws collective_error.
  static std::unique_ptr<peer_windows> open(communicator& host, std::size_t bytes, std::chrono::milliseconds patience,
                                            std::string& objection);

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(blocks_.size()); }
  std::size_t held() const { return blocks_[static_cast<std::size_t>(rank_)].size(); }     // bytes of this device
  std::byte* of(int rank) const { return blocks_[static_cast<std::size_t>(rank)].data(); } // as this device reaches it

  // A word of pinned memory that kernels look at while they wait for peers: 0 until give_up(), from any thread.
  const volatile std::uint32_t* given_up() const { return reinterpret_cast<const volatile std::uint32_t*>(word_); }
  void give_up() noexcept { *reinterpret_cast<volatile std::uint32_t*>(word_) = 1; }

 private:
  peer_windows(int rank, std::vector<shared_block> blocks);

  int rank_;
  std::vector<shared_block> blocks_; // by rank
  pinned_ring pinned_{1, sizeof(std::uint32_t)};
  std::byte* word_;
};

} // namespace troupe::cuda
