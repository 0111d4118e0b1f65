#include "device/cpu/kv_storage.hpp"

#include <cstring>
#include <new>
#include <utility>

namespace troupe::cpu {
namespace {

std::size_t checked_product(std::size_t a, std::size_t b) {
  std::size_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) throw std::bad_array_new_length();
  return product;
}

} // namespace

std::size_t kv_storage::bytes_of(const kv_layout& layout, std::int32_t layers, std::int32_t blocks) {
  return checked_product(checked_product(layout.block_bytes(), static_cast<std::size_t>(blocks)), static_cast<std::size_t>(layers));
}

kv_storage::kv_storage(const kv_layout& layout, std::int32_t layers, std::int32_t blocks, keeper::claim claim)
    : layout_(layout),
      layers_(layers),
      blocks_(blocks),
      bytes_(bytes_of(layout, layers, blocks)),
      kept_(bytes_, std::move(claim)),
      own_(kept_.data() != nullptr ? 0 : bytes_),
      data_(kept_.data() != nullptr ? kept_.data() : own_.data()) {}

kv_layer_view kv_storage::layer(std::int32_t index) {
  return {layout_, data_ + static_cast<std::size_t>(index) * static_cast<std::size_t>(blocks_) * layout_.block_bytes()};
}

void kv_storage::copy_block(block_id from, block_id to) {
  if (from == to) return;
  const std::size_t bytes = layout_.block_bytes();
  for (std::int32_t i = 0; i < layers_; ++i) {
    std::byte* blocks = layer(i).data;
    std::memcpy(blocks + static_cast<std::size_t>(to) * bytes, blocks + static_cast<std::size_t>(from) * bytes, bytes);
  }
}

void kv_storage::fill(std::uint8_t value) {
  if (bytes_ > 0) std::memset(data_, value, bytes_);
}

} // namespace troupe::cpu
