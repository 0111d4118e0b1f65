// What goes up to the device before a step and comes down after it, in slots that are used in turn.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "device/cuda/memory.hpp"
#include "device/cuda/pinned_ring.hpp"
#include "device/cuda/stream.hpp"

namespace troupe {

// Arrays of one step, packed into one copy. A begin() .. used() for each.
class upload_ring {
 public:
  // Copies go on `copies`, the work that reads them on `work`; both outlive this.
  upload_ring(std::size_t slots, std::size_t bytes, cuda::caching_allocator& memory, const cuda::stream& copies, const cuda::stream& work);

  // Waits until a slot's last copy is done.
  void begin();
  // The device address that the copy of `values` will have. Throws std::length_error when the slot is full.
  template <class T>
  const T* put(std::span<const T> values) {
    return reinterpret_cast<const T*>(put_bytes(reinterpret_cast<const std::byte*>(values.data()), values.size_bytes()));
  }
  // Later work of the work stream sees the values.
  void send();
  // The work that reads them is on the work stream.
  void used();

  static std::size_t room_for(std::size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

 private:
  static constexpr std::size_t alignment = 64;
  const std::byte* put_bytes(const std::byte* from, std::size_t bytes);

  const cuda::stream& copies_;
  const cuda::stream& work_;
  cuda::pinned_ring pinned_;
  std::size_t slots_;
  cuda::caching_allocator::buffer device_;
  std::vector<cuda::event> arrived_, used_;
  std::size_t current_ = 0;
  std::byte* open_ = nullptr; // the pinned slot
  std::size_t filled_ = 0;
};

// Results of one step: device memory that the step writes, and pinned memory for the copy.
class download_ring {
 public:
  download_ring(std::size_t slots, std::size_t bytes, cuda::caching_allocator& memory, const cuda::stream& work,
                const cuda::stream& copies);

  // Device memory of `slot`, once its last copy is done, from the work stream's point of view.
  std::byte* device(std::size_t slot);
  // Copies the first `bytes` when the work so far is done.
  void fetch(std::size_t slot, std::size_t bytes);
  // Blocks until fetch() is done; the bytes stay until the slot's next fetch().
  const std::byte* wait(std::size_t slot) const;
  // Milliseconds from the end of the work to the end of the copy, after wait().
  float copy_ms(std::size_t slot) const { return cuda::elapsed_ms(timed_[slot], fetched_[slot]); }
  // When the copies' stream saw the end of the work, and of what it waited for besides: an event with a time on the work's own stream would
  // cost 1 us between two steps.
  const cuda::event& computed(std::size_t slot) const { return timed_[slot]; }
  const cuda::event& fetched(std::size_t slot) const { return fetched_[slot]; }

 private:
  const cuda::stream& work_;
  const cuda::stream& copies_;
  std::size_t slots_, bytes_;
  cuda::pinned_ring pinned_;
  std::byte* pinned_data_;
  cuda::caching_allocator::buffer device_;
  std::vector<cuda::event> computed_, timed_, fetched_;
};

} // namespace troupe
