#include "device/cuda/shared_block.hpp"

#include "device/cuda/driver_calls.hpp"

namespace troupe::cuda {

shared_block shared_block::make(std::size_t bytes, int device) {
  shared_block made;
  made.size_ = shareable_size(bytes, device);
  made.handle_ = create_shareable(made.size_, device);
  made.reach(device);
  return made;
}

shared_block shared_block::map(const keeper::file_descriptor& file, std::size_t bytes, int device) {
  shared_block made;
  made.size_ = shareable_size(bytes, device);
  made.handle_ = import_shareable(file);
  made.reach(device);
  return made;
}

void shared_block::reach(int device) {
  check_driver(driver().reserve(&address_, size_, 0, 0, 0), "cuMemAddressReserve");
  check_driver(driver().map(address_, size_, 0, handle_, 0), "cuMemMap");
  mapped_ = true;
  allow_access(address_, size_, device, true);
}

keeper::file_descriptor shared_block::share() const { return file_of(handle_); }

void shared_block::release() noexcept {
  if (mapped_) check_driver_quietly(driver().unmap(address_, size_), "cuMemUnmap");
  if (address_ != 0) check_driver_quietly(driver().free_addresses(address_, size_), "cuMemAddressFree");
  if (handle_ != 0) check_driver_quietly(driver().release(handle_), "cuMemRelease");
}

} // namespace troupe::cuda
