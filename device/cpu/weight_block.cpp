#include "device/cpu/weight_block.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <new>
#include <utility>

namespace troupe::cpu {

weight_block::weight_block(std::size_t bytes, keeper::claim claim) : size_(bytes), claim_(std::move(claim)) {
  using state = keeper::claim::state;
  if (bytes == 0) return;
  reserved_size_ = bytes + alignment;
  void* const range = ::mmap(nullptr, reserved_size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) throw std::bad_alloc();
  reserved_ = static_cast<std::byte*>(range);
  data_ = reserved_ + (alignment - reinterpret_cast<std::uintptr_t>(range) % alignment) % alignment;
  try {
    if (claim_.now() == state::complete) {
      file_ = claim_.take_memory();
      map_file(PROT_READ);
      filled_ = true;
    } else if (claim_.now() == state::to_fill) {
      file_ = keeper::file_descriptor(memfd_create("troupe-weights", MFD_CLOEXEC | MFD_ALLOW_SEALING));
      if (!file_ || ftruncate(file_.get(), static_cast<off_t>(bytes)) != 0) throw std::bad_alloc();
      map_file(PROT_READ | PROT_WRITE);
    } else {
      if (::mprotect(data_, bytes, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
      ::madvise(data_, bytes, MADV_HUGEPAGE); // a hint: failure costs speed only
    }
  } catch (...) {
    ::munmap(reserved_, reserved_size_);
    throw;
  }
}

weight_block::~weight_block() {
  if (reserved_ != nullptr) ::munmap(reserved_, reserved_size_);
}

void weight_block::swap(weight_block& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(reserved_, other.reserved_);
  std::swap(reserved_size_, other.reserved_size_);
  std::swap(file_, other.file_);
  std::swap(claim_, other.claim_);
  std::swap(filled_, other.filled_);
}

// Pages that are there already are mapped at once, so that the first step meets no faults.
void weight_block::map_file(int protection) {
  const int populate = (protection & PROT_WRITE) != 0 ? 0 : MAP_POPULATE;
  if (::mmap(data_, size_, protection, MAP_SHARED | MAP_FIXED | populate, file_.get(), 0) == MAP_FAILED) throw std::bad_alloc();
  ::madvise(data_, size_, MADV_HUGEPAGE);
}

void weight_block::seal() {
  if (filled_ || size_ == 0) return;
  filled_ = true;
  if (!file_) {
    ::mprotect(data_, size_, PROT_READ); // the data is right even where this fails
    return;
  }
  // A file can be sealed against writing only while nobody has it mapped for writing.
  if (::mmap(data_, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) == MAP_FAILED) throw std::bad_alloc();
  fcntl(file_.get(), F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE); // the keeper looks whether they hold
  map_file(PROT_READ);
  claim_.seal(file_.get());
  file_.reset(); // the mapping stays
}

} // namespace troupe::cpu
