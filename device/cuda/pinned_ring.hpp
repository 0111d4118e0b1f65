// Pinned host memory for uploads and downloads, in slots that are used in turn.
#pragma once

#include <cstddef>
#include <vector>

#include "device/cuda/stream.hpp"

namespace troupe::cuda {

class pinned_ring {
 public:
  // `slots` >= 1 pieces of `bytes` each, made at once.
  pinned_ring(std::size_t slots, std::size_t bytes);
  ~pinned_ring();
  pinned_ring(pinned_ring&& other) noexcept;
  pinned_ring& operator=(pinned_ring&& other) noexcept;

  std::size_t slot_bytes() const { return bytes_; }
  // The next slot, once the copies that its last use ended with are done: blocks until then.
  std::byte* next();
  // Call after the copies that use the slot of the last next() were put on `on`: it is free when they are done.
  void fence(const stream& on);

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::size_t current_ = 0;
  std::vector<event> done_; // one a slot
};

// Copies that only make sense with pinned host memory; they return at once.
void copy_in(const stream& on, std::byte* device, const std::byte* pinned, std::size_t bytes);
void copy_out(const stream& on, std::byte* pinned, const std::byte* device, std::size_t bytes);
// Fills device memory with zero bytes.
void clear(const stream& on, std::byte* device, std::size_t bytes);
// Of each of `rows` rows that begin `stride` bytes apart, the first `bytes`.
void clear_columns(const stream& on, std::byte* device, std::size_t stride, std::size_t bytes, std::size_t rows);
// From one place of device memory to another.
void copy_across(const stream& on, std::byte* to, const std::byte* from, std::size_t bytes);

} // namespace troupe::cuda
