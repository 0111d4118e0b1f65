// The bytes of the CPU device's paged KV cache: all layers, one allocation.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/ids.hpp"
#include "device/cpu/aligned_buffer.hpp"
#include "device/cpu/leased_block.hpp"
#include "device/kv_layout.hpp"

namespace troupe::cpu {

class kv_storage {
 public:
  // Bytes of such a cache. Throws std::bad_alloc when they cannot be counted.
  static std::size_t bytes_of(const kv_layout& layout, std::int32_t layers, std::int32_t blocks);

  // Throws std::bad_alloc. The contents are undefined until written, or what the process before left where the claim, of bytes_of(), has
  // that.
  kv_storage(const kv_layout& layout, std::int32_t layers, std::int32_t blocks, keeper::claim claim = {});

  std::int32_t layers() const { return layers_; }
  std::int32_t blocks() const { return blocks_; }
  const kv_layout& layout() const { return layout_; }
  std::size_t bytes() const { return bytes_; }
  const leased_block& lease() const { return kept_; } // empty: this process's own memory
  kv_layer_view layer(std::int32_t index);
  // Block `from` to block `to` in every layer; both in 0 .. blocks()-1.
  void copy_block(block_id from, block_id to);
  // Fills everything with one byte value; 0xff makes every element a NaN.
  void fill(std::uint8_t value);

 private:
  kv_layout layout_;
  std::int32_t layers_;
  std::int32_t blocks_;
  std::size_t bytes_;
  leased_block kept_;
  aligned_buffer<std::byte> own_;
  std::byte* data_;
};

} // namespace troupe::cpu
