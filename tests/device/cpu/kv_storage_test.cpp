#include "device/cpu/kv_storage.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <new>

namespace troupe::cpu {
namespace {

TEST(kv_storage, a_copy_takes_the_whole_block_in_every_layer_and_nothing_else) {
  const kv_layout layout{dtype::bf16, 3, 2, 5};
  kv_storage kv(layout, 4, 6);
  ASSERT_EQ(kv.bytes(), 4U * 6U * 2U * 2U * 3U * 5U * 2U);
  for (std::int32_t layer = 0; layer < 4; ++layer) {
    for (std::int32_t block = 0; block < 6; ++block) {
      std::memset(kv.layer(layer).head(block, 0), 16 * layer + block, layout.block_bytes());
    }
  }
  kv.copy_block(1, 4);
  kv.copy_block(2, 2);
  for (std::int32_t layer = 0; layer < 4; ++layer) {
    for (std::int32_t block = 0; block < 6; ++block) {
      const std::byte* bytes = kv.layer(layer).head(block, 0);
      for (std::size_t i = 0; i < layout.block_bytes(); ++i) {
        ASSERT_EQ(static_cast<int>(bytes[i]), 16 * layer + (block == 4 ? 1 : block)) << "layer " << layer << ", block " << block;
      }
    }
  }
}

TEST(kv_storage, sizes_that_overflow_are_refused_not_wrapped) {
  const kv_layout layout{dtype::f32, 1 << 30, 1 << 10, 1 << 10};
  EXPECT_THROW(kv_storage(layout, 1 << 20, 1 << 30), std::bad_alloc);
}

} // namespace
} // namespace troupe::cpu
