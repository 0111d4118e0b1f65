// Windows into each other's memory, between ranks that are threads of one process; what needs two GPUs is skipped where there are fewer.
#include "transport/collective/cuda/peer_windows.hpp"

#include <cuda_runtime_api.h>
#include <stdlib.h>

#include "device/cuda/check.hpp"
#include "device/cuda/stream.hpp"
#include "tests/transport/collective/group_testing.hpp"
#include "transport/collective/local_group.hpp"

namespace troupe::cuda {
namespace {

using namespace std::chrono_literals;

class peer_windows_test : public ::testing::Test {
 protected:
  void SetUp() override {
    if (device_count() == 0) GTEST_SKIP() << "no CUDA device on this machine";
  }
  // What each of two ranks gets, on the GPU of its number or on GPU 0.
  struct opened {
    std::unique_ptr<peer_windows> windows;
    std::string objection;
  };
  static std::vector<opened> open(bool each_its_own, std::size_t bytes) {
    std::vector<opened> out(2);
    auto group = make_local_group(2, kAmple);
    expect_success(run_ranks(group, [&](communicator& me) {
      use_device(each_its_own ? me.rank() : 0);
      opened& mine = out[static_cast<std::size_t>(me.rank())];
      mine.windows = peer_windows::open(me, bytes, 5s, mine.objection);
    }));
    return out;
  }
};

TEST_F(peer_windows_test, two_ranks_on_one_gpu_are_refused_with_its_place) {
  for (const opened& one : open(false, 4096)) {
    EXPECT_EQ(one.windows, nullptr);
    EXPECT_NE(one.objection.find("rank 0: the GPU at "), std::string::npos) << one.objection;
    EXPECT_NE(one.objection.find("is another rank's too"), std::string::npos) << one.objection;
  }
}

TEST_F(peer_windows_test, what_the_user_forbids_is_not_done) {
  ::setenv("NCCL_P2P_DISABLE", "1", 1);
  const auto both = open(device_count() > 1, 4096);
  ::unsetenv("NCCL_P2P_DISABLE");
  for (const opened& one : both) {
    EXPECT_EQ(one.windows, nullptr);
    EXPECT_EQ(one.objection, "rank 0: NCCL_P2P_DISABLE=1 forbids it");
  }
}

class gpu_pair_windows : public peer_windows_test {
 protected:
  void SetUp() override {
    if (device_count() < 2) GTEST_SKIP() << "fewer than two CUDA devices on this machine";
  }
};

TEST_F(gpu_pair_windows, what_a_rank_writes_lies_in_the_other_ranks_window) {
  constexpr std::size_t bytes = (std::size_t{3} << 20) + 16;
  auto both = open(true, bytes);
  for (const int rank : {0, 1}) ASSERT_NE(both[static_cast<std::size_t>(rank)].windows, nullptr) << both[0].objection;
  for (const int rank : {0, 1}) { // writes value 1 + rank to the peer
    use_device(rank);
    const stream on;
    std::byte* const peers = both[static_cast<std::size_t>(rank)].windows->of(1 - rank);
    check(cudaMemsetAsync(peers, 1 + rank, bytes, on.handle()), "cudaMemsetAsync");
    on.synchronize();
  }
  for (const int rank : {0, 1}) {
    use_device(rank);
    std::vector<std::byte> got(bytes);
    const auto& mine = *both[static_cast<std::size_t>(rank)].windows;
    check(cudaMemcpy(got.data(), mine.of(rank), bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
    EXPECT_EQ(got, std::vector<std::byte>(bytes, static_cast<std::byte>(2 - rank)));
    EXPECT_GE(mine.held(), bytes);
    EXPECT_EQ(*mine.given_up(), 0U);
  }
  use_device(0);
  both[1].windows.reset(); // its memory lives on in rank 0's mapping
  const stream on;
  check(cudaMemsetAsync(both[0].windows->of(1), 3, bytes, on.handle()), "cudaMemsetAsync");
  on.synchronize();
}

} // namespace
} // namespace troupe::cuda
