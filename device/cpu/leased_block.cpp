#include "device/cpu/leased_block.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <new>
#include <utility>

namespace troupe::cpu {

leased_block::leased_block(std::size_t bytes, keeper::claim claim) : size_(bytes), claim_(std::move(claim)) {
  using state = keeper::claim::state;
  if (bytes == 0) return;
  if (claim_.now() == state::complete) {
    map(claim_.take_memory().get());
    found_ = true;
  } else if (claim_.now() == state::to_fill) {
    const keeper::file_descriptor file(memfd_create("troupe-kv", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!file || ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) throw std::bad_alloc();
    fcntl(file.get(), F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW); // the keeper looks whether they hold
    if (claim_.seal(file.get())) map(file.get());
  }
}

leased_block::~leased_block() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

// Pages come when they are touched: those that nobody wrote are never taken.
void leased_block::map(int file) {
  void* const at = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (at == MAP_FAILED) throw std::bad_alloc();
  data_ = static_cast<std::byte*>(at);
  ::madvise(at, size_, MADV_HUGEPAGE); // a hint
}

} // namespace troupe::cpu
