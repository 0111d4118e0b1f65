#include "models/gpu_transfers.hpp"

#include <stdexcept>

namespace troupe {
namespace {

std::vector<cuda::event> make_events(std::size_t count, cuda::event::timing kind) {
  std::vector<cuda::event> events;
  for (std::size_t i = 0; i < count; ++i) events.emplace_back(kind);
  return events;
}

} // namespace

upload_ring::upload_ring(std::size_t slots, std::size_t bytes, cuda::caching_allocator& memory, const cuda::stream& copies,
                         const cuda::stream& work)
    : copies_(copies),
      work_(work),
      pinned_(slots, bytes),
      slots_(slots),
      device_(memory.allocate(slots * pinned_.slot_bytes(), "uploads")),
      arrived_(make_events(slots, cuda::event::timing::off)),
      used_(make_events(slots, cuda::event::timing::off)) {}

void upload_ring::begin() {
  open_ = pinned_.next();
  filled_ = 0;
}

const std::byte* upload_ring::put_bytes(const std::byte* from, std::size_t bytes) {
  const std::size_t room = room_for(bytes);
  if (filled_ + room > pinned_.slot_bytes()) throw std::length_error("a step has more to upload than was planned for");
  if (bytes > 0) std::memcpy(open_ + filled_, from, bytes);
  const std::byte* const address = device_.data() + current_ * pinned_.slot_bytes() + filled_;
  filled_ += room;
  return address;
}

void upload_ring::send() {
  copies_.wait_for(used_[current_]); // the step that read this slot last
  if (filled_ > 0) cuda::copy_in(copies_, device_.data() + current_ * pinned_.slot_bytes(), open_, filled_);
  pinned_.fence(copies_);
  arrived_[current_].record(copies_);
  work_.wait_for(arrived_[current_]);
}

void upload_ring::used() {
  used_[current_].record(work_);
  current_ = (current_ + 1) % slots_;
}

download_ring::download_ring(std::size_t slots, std::size_t bytes, cuda::caching_allocator& memory, const cuda::stream& work,
                             const cuda::stream& copies)
    : work_(work),
      copies_(copies),
      slots_(slots),
      bytes_((bytes + 255) / 256 * 256),
      pinned_(1, slots * bytes_),
      pinned_data_(pinned_.next()),
      device_(memory.allocate(slots * bytes_, "downloads")),
      computed_(make_events(slots, cuda::event::timing::off)),
      timed_(make_events(slots, cuda::event::timing::on)),
      fetched_(make_events(slots, cuda::event::timing::on)) {}

std::byte* download_ring::device(std::size_t slot) {
  work_.wait_for(fetched_[slot]);
  return device_.data() + slot * bytes_;
}

void download_ring::fetch(std::size_t slot, std::size_t bytes) {
  computed_[slot].record(work_);
  copies_.wait_for(computed_[slot]);
  timed_[slot].record(copies_);
  if (bytes > 0) cuda::copy_out(copies_, pinned_data_ + slot * bytes_, device_.data() + slot * bytes_, bytes);
  fetched_[slot].record(copies_);
}

const std::byte* download_ring::wait(std::size_t slot) const {
  fetched_[slot].wait();
  return pinned_data_ + slot * bytes_;
}

} // namespace troupe
