// Device memory that is mapped twice, on a real GPU; skipped where there is none.
#include "device/cuda/shared_block.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "core/error.hpp"
#include "device/cuda/pinned_ring.hpp"
#include "device/cuda/stream.hpp"

namespace troupe::cuda {
namespace {

constexpr std::size_t bytes = (std::size_t{3} << 20) + 5;

class shared_block_test : public ::testing::Test {
 protected:
  void SetUp() override {
    if (device_count() == 0) GTEST_SKIP() << "no CUDA device on this machine";
    use_device(0);
  }
};

std::vector<std::byte> read(const std::byte* device) {
  const stream on;
  pinned_ring down(1, bytes);
  std::byte* const host = down.next();
  copy_out(on, host, device, bytes);
  on.synchronize();
  return {host, host + bytes};
}

TEST_F(shared_block_test, a_mapping_shows_the_same_bytes_and_keeps_them_alive) {
  std::vector<std::byte> values(bytes);
  for (std::size_t i = 0; i < bytes; ++i) values[i] = static_cast<std::byte>(i * 7 % 251);
  shared_block second;
  {
    const shared_block first = shared_block::make(bytes, 0);
    EXPECT_GE(first.size(), bytes);
    second = shared_block::map(first.share(), bytes, 0);
    EXPECT_NE(second.data(), first.data());
    const stream on;
    pinned_ring up(1, bytes);
    std::byte* const host = up.next();
    std::memcpy(host, values.data(), bytes);
    copy_in(on, second.data(), host, bytes);
    on.synchronize();
    EXPECT_EQ(read(first.data()), values);
  }
  EXPECT_EQ(read(second.data()), values) << "after its maker let go";
}

TEST_F(shared_block_test, what_is_no_memory_cannot_be_mapped) {
  EXPECT_THROW(shared_block::map(keeper::file_descriptor(::dup(0)), bytes, 0), device_error);
  EXPECT_THROW(shared_block::map({}, bytes, 0), device_error);
}

} // namespace
} // namespace troupe::cuda
