// Device memory that several GPUs' processes reach: one makes it, a file descriptor stands for it, the others map it. It lives until the
// last of them has let go, so that a write never meets memory that its owner gave back.
#pragma once

#include <cstddef>
#include <utility>

#include "device/keeper/file_descriptor.hpp"

namespace troupe::cuda {

class shared_block {
 public:
  shared_block() = default;
  // Of at least `bytes` on `device`, for that device to read and write. Throws device_error.
  static shared_block make(std::size_t bytes, int device);
  // Another's, made for as many `bytes`, for this process' `device` to read and write. Throws device_error, also where that device cannot
  // reach it.
  static shared_block map(const keeper::file_descriptor& file, std::size_t bytes, int device);
  // Nothing queued on the device may use it any more.
  ~shared_block() { release(); }
  shared_block(shared_block&& other) noexcept { swap(other); }
  shared_block& operator=(shared_block&& other) noexcept {
    swap(other);
    return *this;
  }

  std::byte* data() const { return reinterpret_cast<std::byte*>(address_); }
  std::size_t size() const { return size_; } // a multiple of the device's granularity
  keeper::file_descriptor share() const;     // for map(), in this process or another of this machine

 private:
  void reach(int device);
  void release() noexcept;
  void swap(shared_block& other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(address_, other.address_);
    std::swap(size_, other.size_);
    std::swap(mapped_, other.mapped_);
  }

  unsigned long long handle_ = 0;  // CUmemGenericAllocationHandle
  unsigned long long address_ = 0; // CUdeviceptr
  std::size_t size_ = 0;
  bool mapped_ = false;
};

} // namespace troupe::cuda
