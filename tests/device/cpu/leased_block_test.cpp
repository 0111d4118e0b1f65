// Memory that one process leaves to the next: found as it was, or new, or not a keeper's at all.
#include "device/cpu/leased_block.hpp"

#include <algorithm>

#include "device/cpu/kv_storage.hpp"
#include "tests/device/keeper/keeper_testing.hpp"

namespace troupe::cpu {
namespace {

using keeper::testing::running_keeper;

constexpr std::size_t bytes = (std::size_t{3} << 20) + 17;

keeper::claim lease(const keeper::address& at, std::size_t size = bytes, const std::string& manifest = "a pool") {
  return keeper::ask(at, {1, manifest, size, keeper::memory_kind::host, keeper::region_use::leased});
}

TEST(LeasedBlock, IsEmptyWithoutAKeeper) {
  const leased_block block(bytes, {});
  EXPECT_EQ(block.data(), nullptr);
  EXPECT_FALSE(block.found());
}

TEST(LeasedBlock, HoldsWhatTheOneBeforeWrote) {
  running_keeper running;
  {
    const leased_block first(bytes, lease(running.at));
    ASSERT_NE(first.data(), nullptr) << first.claim().reason();
    EXPECT_FALSE(first.found());
    EXPECT_TRUE(std::all_of(first.data(), first.data() + bytes, [](std::byte b) { return b == std::byte{0}; }));
    std::fill_n(first.data(), bytes, std::byte{7});
  }
  for (int round = 0; round < 2; ++round) {
    const leased_block next(bytes, lease(running.at));
    ASSERT_TRUE(next.found()) << next.claim().reason();
    const auto expected = static_cast<std::byte>(7 + round);
    EXPECT_TRUE(std::all_of(next.data(), next.data() + bytes, [&](std::byte b) { return b == expected; }));
    std::fill_n(next.data(), bytes, static_cast<std::byte>(8 + round));
  }
}

TEST(LeasedBlock, OfAKeeperThatRefusesIsEmpty) {
  running_keeper running;
  auto claim = lease(running.at);
  ASSERT_EQ(claim.now(), keeper::claim::state::to_fill);
  const leased_block elsewhere(bytes, lease(running.at, bytes, "another pool")); // takes the slot meanwhile
  const leased_block block(bytes, std::move(claim));
  EXPECT_EQ(block.data(), nullptr);
  EXPECT_NE(block.claim().reason().find("no longer this client's"), std::string::npos) << block.claim().reason();
}

TEST(LeasedBlock, AKvCacheUsesItAndFallsBackOnItsOwn) {
  running_keeper running;
  const kv_layout layout{dtype::f16, 8, 2, 16};
  const std::size_t size = kv_storage::bytes_of(layout, 2, 5);
  {
    kv_storage kv(layout, 2, 5, lease(running.at, size));
    kv.fill(0x11);
    kv.layer(1).data[3] = std::byte{0x22};
    kv.copy_block(0, 4);
  }
  kv_storage kept(layout, 2, 5, lease(running.at, size));
  EXPECT_TRUE(kept.lease().found());
  EXPECT_EQ(kept.bytes(), size);
  EXPECT_EQ(kept.layer(1).data[3], std::byte{0x22});
  EXPECT_EQ(kept.layer(1).data[4 * layout.block_bytes() + 3], std::byte{0x22});
  EXPECT_EQ(kept.layer(0).data[3], std::byte{0x11});
  kv_storage own(layout, 2, 5);
  own.fill(0x33);
  EXPECT_EQ(own.lease().data(), nullptr);
  EXPECT_EQ(own.layer(1).data[layout.block_bytes()], std::byte{0x33});
}

} // namespace
} // namespace troupe::cpu
