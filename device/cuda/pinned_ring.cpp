#include "device/cuda/pinned_ring.hpp"

#include "device/cuda/check.hpp"
#include "device/cuda/resources.hpp"

namespace troupe::cuda {

pinned_ring::pinned_ring(std::size_t slots, std::size_t bytes) : bytes_((bytes + 255) / 256 * 256), current_(slots - 1), done_(slots) {
  void* data = nullptr;
  check(cudaHostAlloc(&data, slots * bytes_, cudaHostAllocDefault), "cudaHostAlloc");
  detail::count(detail::resource::pinned_allocation);
  data_ = static_cast<std::byte*>(data);
}

pinned_ring::~pinned_ring() {
  if (data_ != nullptr) check_quietly(cudaFreeHost(data_), "cudaFreeHost");
}

pinned_ring::pinned_ring(pinned_ring&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_), current_(other.current_), done_(std::move(other.done_)) {}

pinned_ring& pinned_ring::operator=(pinned_ring&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(current_, other.current_);
  done_.swap(other.done_);
  return *this;
}

std::byte* pinned_ring::next() {
  current_ = (current_ + 1) % done_.size();
  done_[current_].wait();
  return data_ + current_ * bytes_;
}

void pinned_ring::fence(const stream& on) { done_[current_].record(on); }

void copy_in(const stream& on, std::byte* device, const std::byte* pinned, std::size_t bytes) {
  check(cudaMemcpyAsync(device, pinned, bytes, cudaMemcpyHostToDevice, on.handle()), "cudaMemcpyAsync");
}

void copy_out(const stream& on, std::byte* pinned, const std::byte* device, std::size_t bytes) {
  check(cudaMemcpyAsync(pinned, device, bytes, cudaMemcpyDeviceToHost, on.handle()), "cudaMemcpyAsync");
}

void clear(const stream& on, std::byte* device, std::size_t bytes) {
  check(cudaMemsetAsync(device, 0, bytes, on.handle()), "cudaMemsetAsync");
}

void clear_columns(const stream& on, std::byte* device, std::size_t stride, std::size_t bytes, std::size_t rows) {
  check(cudaMemset2DAsync(device, stride, 0, bytes, rows, on.handle()), "cudaMemset2DAsync");
}

void copy_across(const stream& on, std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0) check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, on.handle()), "cudaMemcpyAsync");
}

} // namespace troupe::cuda
