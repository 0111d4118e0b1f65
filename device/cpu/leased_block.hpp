// One block of host memory that may outlive this process: a keeper lends it to one process at a time, which reads and writes it.
#pragma once

#include <cstddef>

#include "device/keeper/client.hpp"

namespace troupe::cpu {

class leased_block {
 public:
  leased_block() = default;
  // A claim of a leased region. One that is complete is mapped as the process before left it; one that is to be filled gets memory of
  // zeros, which the keeper holds from here on. Without either the block is empty. Throws std::bad_alloc.
  leased_block(std::size_t bytes, keeper::claim claim);
  ~leased_block();
  leased_block(const leased_block&) = delete;
  leased_block& operator=(const leased_block&) = delete;

  std::byte* data() const { return data_; } // on a page's border; null: the block is empty
  bool found() const { return found_; }     // it holds what the process before left
  const keeper::claim& claim() const { return claim_; }

 private:
  void map(int file);

  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  bool found_ = false;
  keeper::claim claim_; // holds the lease
};

} // namespace troupe::cpu
