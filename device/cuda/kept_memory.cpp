#include "device/cuda/kept_memory.hpp"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <utility>

#include "core/hex.hpp"
#include "device/cuda/check.hpp"
#include "device/cuda/driver_calls.hpp"

namespace troupe::cuda {

std::string device_uuid(int device) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  return "GPU-" + hex_of({reinterpret_cast<const std::uint8_t*>(properties.uuid.bytes), sizeof properties.uuid.bytes});
}

std::size_t kept_size(std::size_t bytes, int device) { return shareable_size(bytes, device); }

std::byte* kept_memory::take(std::size_t bytes) {
  size_ = kept_size(bytes, device_);
  if (claim_.now() == keeper::claim::state::complete) {
    handle_ = import_shareable(claim_.take_memory());
    filled_ = true;
  } else {
    handle_ = create_shareable(size_, device_);
  }
  check_driver(driver().reserve(&address_, size_, 0, 0, 0), "cuMemAddressReserve");
  const bool leased = use_ == keeper::region_use::leased;
  map(leased || !filled_);
  if (leased && !filled_) hand_over();
  return reinterpret_cast<std::byte*>(address_);
}

void kept_memory::hand_over() { claim_.seal(file_of(handle_).get()); }

void kept_memory::map(bool writable) {
  check_driver(driver().map(address_, size_, 0, handle_, 0), "cuMemMap");
  allow_access(address_, size_, device_, writable);
}

void kept_memory::seal() {
  if (filled_) return;
  filled_ = true;
  check_driver(driver().unmap(address_, size_), "cuMemUnmap");
  map(false);
  hand_over();
}

void kept_memory::give_back(std::byte*) noexcept {
  check_driver_quietly(driver().unmap(address_, size_), "cuMemUnmap");
  check_driver_quietly(driver().free_addresses(address_, size_), "cuMemAddressFree");
  check_driver_quietly(driver().release(handle_), "cuMemRelease");
}

} // namespace troupe::cuda
