// A block of device memory that outlives this process in a keeper's hands: made with CUDA's virtual memory calls, so that a file descriptor
// stands for it. One of a constant region is mapped read-only once it is filled, one of a leased region is the keeper's from the start and
// stays writable. The driver's calls are found at run time; nothing links against it.
#pragma once

#include <cstddef>
#include <string>

#include "device/cuda/memory.hpp"
#include "device/keeper/client.hpp"

namespace troupe::cuda {

// A device's name for good ("GPU-" and its UUID), whatever number this process knows it by.
std::string device_uuid(int device);
// What kept_memory takes for `bytes`: a multiple of the device's granularity.
std::size_t kept_size(std::size_t bytes, int device);

// Gives out one block, once: the claim's memory when it is complete, else memory of this process's making.
class kept_memory final : public memory_source {
 public:
  // The claim is complete or to be filled, for kept_size() bytes.
  kept_memory(keeper::claim claim, int device, keeper::region_use use = keeper::region_use::constant)
      : claim_(std::move(claim)), device_(device), use_(use) {}

  std::byte* take(std::size_t bytes) override;
  void give_back(std::byte* data) noexcept override; // this process's mapping; the memory stays with the keeper

  bool filled() const { return filled_; } // constant: a write is a fault; leased: it holds what the process before left
  // Everything is written, and waited for: from here on a write is a fault, and the keeper holds the block. Throws device_error.
  void seal();
  const keeper::claim& claim() const { return claim_; } // after seal(), with the reason why it is not kept

 private:
  void map(bool writable);
  void hand_over();

  keeper::claim claim_;
  int device_;
  keeper::region_use use_;
  bool filled_ = false;
  unsigned long long handle_ = 0;  // CUmemGenericAllocationHandle
  unsigned long long address_ = 0; // CUdeviceptr
  std::size_t size_ = 0;
};

} // namespace troupe::cuda
