// One block of host memory for weights: written once, then read-only. It may be this process's own, or one that a keeper holds for this
// process and the ones after it.
#pragma once

#include <cstddef>

#include "device/keeper/client.hpp"

namespace troupe::cpu {

class weight_block {
 public:
  static constexpr std::size_t alignment = std::size_t{2} << 20;

  weight_block() = default;
  // A claim that is complete is mapped read-only, one that is to be filled gets memory that can outlive the process, and without either
  // the memory is anonymous, on huge pages where the system has them. Throws std::bad_alloc.
  weight_block(std::size_t bytes, keeper::claim claim);
  ~weight_block();
  weight_block(weight_block&& other) noexcept { swap(other); }
  weight_block& operator=(weight_block&& other) noexcept {
    swap(other);
    return *this;
  }

  std::byte* data() const { return data_; } // aligned as above; read-only once filled()
  std::size_t size() const { return size_; }
  bool filled() const { return filled_; }
  // The caller has written everything: from here on a write is a fault, and a keeper that let the block be filled holds it.
  void seal();
  const keeper::claim& claim() const { return claim_; } // after seal(), with the reason why it is not kept

 private:
  void swap(weight_block& other) noexcept;
  void map_file(int protection);

  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::byte* reserved_ = nullptr; // addresses round data_, so that it can be aligned
  std::size_t reserved_size_ = 0;
  keeper::file_descriptor file_; // none: anonymous
  keeper::claim claim_;
  bool filled_ = false;
};

} // namespace troupe::cpu
