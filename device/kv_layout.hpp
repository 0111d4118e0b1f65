// Where the keys and values of a paged KV cache lie. One layer is an array of blocks; in a block each KV head has its keys
// [head_dim][block_size] (transposed, so that one load brings a dimension of neighbouring positions) and then its values
// [block_size][head_dim].
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.hpp"

namespace troupe {

struct kv_layout {
  dtype type = dtype::f16;     // f32, f16 or bf16
  std::int32_t block_size = 0; // positions per block
  std::int32_t kv_heads = 0;
  std::int32_t head_dim = 0;

  constexpr std::size_t element_bytes() const { return traits(type).block_bytes; }
  // Elements of the keys (or the values) of one head in one block.
  constexpr std::size_t head_elements() const { return static_cast<std::size_t>(block_size) * static_cast<std::size_t>(head_dim); }
  constexpr std::size_t block_bytes() const { return 2 * static_cast<std::size_t>(kv_heads) * head_elements() * element_bytes(); }
};

// One layer's blocks. Not owned.
struct kv_layer_view {
  kv_layout layout;
  std::byte* data = nullptr;

  // The keys of head `head` in block `block`; its values follow after head_elements() elements.
  std::byte* head(std::int32_t block, std::int32_t index) const {
    return data + static_cast<std::size_t>(block) * layout.block_bytes() +
           static_cast<std::size_t>(index) * 2 * layout.head_elements() * layout.element_bytes();
  }
};

} // namespace troupe
