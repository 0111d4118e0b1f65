// The CUDA device layer on a real GPU; skipped, saying so, where there is none.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "core/error.hpp"
#include "device/cuda/check.hpp"
#include "device/cuda/graph.hpp"
#include "device/cuda/memory.hpp"
#include "device/cuda/nvtx.hpp"
#include "device/cuda/pinned_ring.hpp"
#include "device/cuda/resources.hpp"
#include "device/cuda/stream.hpp"

namespace troupe::cuda {
namespace {

class cuda_device_test : public ::testing::Test {
 protected:
  void SetUp() override {
    if (device_count() == 0) GTEST_SKIP() << "no CUDA device on this machine";
    use_device(0);
  }
};

// The text of the device_error that `call` throws.
template <class Call>
std::string error_of(Call&& call) {
  try {
    call();
  } catch (const device_error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST_F(cuda_device_test, a_failed_call_names_itself_and_its_line) {
  const int line = __LINE__ + 1;
  const std::string text = error_of([] { check(cudaSetDevice(-7), "cudaSetDevice"); });
  EXPECT_NE(text.find("cudaSetDevice at "), std::string::npos) << text;
  EXPECT_NE(text.find("device_test.cpp:" + std::to_string(line) + ": cudaErrorInvalidDevice"), std::string::npos) << text;
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "a reported error is not found again";
}

TEST_F(cuda_device_test, streams_do_not_wait_for_the_default_stream) {
  const stream_pool streams;
  for (const stream* one : {&streams.compute, &streams.copy_in, &streams.copy_out, &streams.communication, &streams.draft}) {
    unsigned flags = 0;
    check(cudaStreamGetFlags(one->handle(), &flags), "cudaStreamGetFlags");
    EXPECT_EQ(flags, static_cast<unsigned>(cudaStreamNonBlocking));
  }
}

TEST_F(cuda_device_test, events_order_copies_of_two_streams) {
  const stream_pool streams;
  const auto source = own_memory();
  memory_ledger ledger;
  caching_allocator allocator(*source, ledger);
  constexpr std::size_t bytes = std::size_t{32} << 20;
  const auto device = allocator.allocate(bytes, "test");
  pinned_ring up(1, bytes), down(1, bytes);
  std::byte* from = up.next();
  for (std::size_t i = 0; i < bytes; ++i) from[i] = static_cast<std::byte>(i * 7 % 251);
  std::byte* to = down.next();
  std::memset(to, 0xff, bytes);
  event uploaded, downloaded;
  copy_in(streams.copy_in, device.data(), from, bytes);
  uploaded.record(streams.copy_in);
  streams.copy_out.wait_for(uploaded);
  copy_out(streams.copy_out, to, device.data(), bytes);
  downloaded.record(streams.copy_out);
  downloaded.wait();
  EXPECT_TRUE(downloaded.reached());
  EXPECT_EQ(std::memcmp(from, to, bytes), 0);
}

TEST_F(cuda_device_test, a_ring_slot_comes_back_only_when_its_copy_is_done) {
  const stream on;
  const auto source = own_memory();
  memory_ledger ledger;
  caching_allocator allocator(*source, ledger);
  constexpr std::size_t bytes = std::size_t{4} << 20;
  constexpr int uses = 12;
  const auto device = allocator.allocate(bytes * uses, "test");
  pinned_ring ring(2, bytes), back(1, bytes * uses);
  for (int use = 0; use < uses; ++use) {
    std::byte* slot = ring.next();
    std::memset(slot, use + 1, bytes); // would spoil a copy still under way
    copy_in(on, device.data() + static_cast<std::size_t>(use) * bytes, slot, bytes);
    ring.fence(on);
  }
  std::byte* all = back.next();
  copy_out(on, all, device.data(), bytes * uses);
  on.synchronize();
  for (std::size_t i = 0; i < bytes * uses; ++i) ASSERT_EQ(static_cast<std::size_t>(all[i]), i / bytes + 1) << i;
}

TEST_F(cuda_device_test, buffers_come_back_from_the_cache_and_the_ledger_follows) {
  const auto source = own_memory();
  memory_ledger ledger;
  {
    caching_allocator allocator(*source, ledger);
    auto first = allocator.allocate(1000, "hidden states");
    std::byte* const place = first.data();
    EXPECT_EQ(ledger.held("hidden states"), 1024U);
    first = {};
    EXPECT_EQ(ledger.held("hidden states"), 0U);
    EXPECT_EQ(ledger.held("cached"), 1024U);
    const resource_counts before = resources_made();
    const auto again = allocator.allocate(900, "logits");
    EXPECT_EQ(again.data(), place);
    EXPECT_EQ(resources_made(), before);
    EXPECT_EQ(ledger.text(), "logits: 1024 bytes\ncached: 0 bytes\nhidden states: 0 bytes\nin all: 1024 bytes\n");
  }
  EXPECT_EQ(ledger.total(), 0U);
}

TEST_F(cuda_device_test, too_much_memory_is_refused_with_the_ledger_and_the_device_lives_on) {
  const auto source = own_memory();
  memory_ledger ledger;
  caching_allocator allocator(*source, ledger);
  const auto held = allocator.allocate(4096, "weights");
  const std::string text = error_of([&] { allocator.allocate(std::size_t{1} << 44, "KV cache"); });
  EXPECT_NE(text.find("no room for"), std::string::npos) << text;
  EXPECT_NE(text.find("KV cache"), std::string::npos) << text;
  EXPECT_NE(text.find("weights: 4096 bytes"), std::string::npos) << text;
  EXPECT_NE(allocator.allocate(4096, "more").data(), nullptr);
}

TEST_F(cuda_device_test, sizes_are_rounded_up_by_a_quarter_at_most) {
  for (std::size_t bytes = 1; bytes < (std::size_t{1} << 40); bytes += bytes / 3 + 1) {
    const std::size_t size = caching_allocator::rounded(bytes);
    ASSERT_GE(size, bytes);
    ASSERT_LE(size, bytes + std::max<std::size_t>(511, bytes / 4)) << bytes;
    ASSERT_EQ(caching_allocator::rounded(size), size) << bytes;
  }
}

TEST_F(cuda_device_test, a_graph_replays_its_work_and_steps_make_nothing) {
  const stream on;
  const auto source = own_memory();
  memory_ledger ledger;
  caching_allocator allocator(*source, ledger);
  const auto device = allocator.allocate(64, "test");
  pinned_ring up(1, 64), down(1, 64);
  std::byte* in = up.next();
  std::byte* out = down.next();
  const graph step = graph::capture(on, [&] {
    copy_in(on, device.data(), in, 64);
    copy_out(on, out, device.data(), 64);
  });
  std::memset(out, 0xff, 64);
  allocator.allocate(64, "scratch"); // start-up: every later step finds it in the cache
  const resource_counts before = resources_made();
  for (int value = 0; value < 5; ++value) {
    const nvtx_range range("step");
    std::memset(in, value, 64);
    step.launch(on);
    on.synchronize();
    for (int i = 0; i < 64; ++i) ASSERT_EQ(static_cast<int>(out[i]), value);
    const auto scratch = allocator.allocate(64, "scratch");
  }
  EXPECT_EQ(resources_made(), before);
  EXPECT_THROW(step.launch(on, 5), device_error) << "no kernel of it takes an argument";
}

TEST_F(cuda_device_test, a_failure_while_recording_leaves_the_stream_usable) {
  const stream on;
  EXPECT_THROW(graph::capture(on, [] { throw device_error("planned"); }), device_error);
  pinned_ring ring(1, 16);
  EXPECT_NO_THROW(on.synchronize());
  std::byte* slot = ring.next();
  EXPECT_NO_THROW(graph::capture(on, [&] { copy_out(on, slot, slot + 8, 8); }));
}

} // namespace
} // namespace troupe::cuda
