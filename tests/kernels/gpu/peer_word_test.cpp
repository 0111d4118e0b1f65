#include <chrono>
#include <thread>

#include "kernels/peer_word_gpu.hpp"
#include "tests/kernels/gpu/gpu_testing.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;

class gpu_peer_word_test : public test::gpu_op_test {};

TEST_F(gpu_peer_word_test, what_follows_begins_when_the_word_is_there_or_somebody_gives_up) {
  using words = std::vector<std::uint32_t>;
  const buffer word = upload(words{6});
  cuda::pinned_ring host(1, 2 * sizeof(std::uint32_t));
  std::byte* const given_up = host.next();
  std::byte* const seven = given_up + sizeof(std::uint32_t);
  std::memset(given_up, 0, sizeof(std::uint32_t));
  std::memcpy(seven, words{7}.data(), sizeof(std::uint32_t));
  const auto await = [&](std::uint32_t value) {
    gpu::await_word(stream(), {word.as<std::uint32_t>(), value, reinterpret_cast<const volatile std::uint32_t*>(given_up)});
  };
  await(6);
  EXPECT_TRUE(stream_->is_done_within(2s));
  await(7);
  EXPECT_FALSE(stream_->is_done_within(50ms));
  const cuda::stream other;
  cuda::copy_in(other, word.data(), seven, sizeof(std::uint32_t));
  EXPECT_TRUE(stream_->is_done_within(2s));
  await(8);
  EXPECT_FALSE(stream_->is_done_within(50ms));
  *reinterpret_cast<volatile std::uint32_t*>(given_up) = 1;
  EXPECT_TRUE(stream_->is_done_within(2s));
}

} // namespace
} // namespace troupe
