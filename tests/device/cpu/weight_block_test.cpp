#include "device/cpu/weight_block.hpp"

#include <csignal>
#include <cstring>

#include "tests/device/keeper/keeper_testing.hpp"

namespace troupe::cpu {
namespace {

using keeper::testing::region;
using keeper::testing::running_keeper;
using state = keeper::claim::state;

constexpr std::size_t bytes = (std::size_t{5} << 20) + 17; // no whole number of pages

void write_all(const weight_block& block) {
  for (std::size_t i = 0; i < block.size(); ++i) block.data()[i] = static_cast<std::byte>(i * 31 % 251);
}

bool holds_all(const weight_block& block) {
  for (std::size_t i = 0; i < block.size(); ++i) {
    if (block.data()[i] != static_cast<std::byte>(i * 31 % 251)) return false;
  }
  return true;
}

TEST(WeightBlock, WithoutAKeeperItIsThisProcessesOwn) {
  weight_block block(bytes, {});
  EXPECT_FALSE(block.filled());
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block.data()) % weight_block::alignment, 0U);
  write_all(block);
  block.seal();
  EXPECT_TRUE(block.filled());
  EXPECT_TRUE(holds_all(block));
  const weight_block moved = std::move(block);
  EXPECT_TRUE(holds_all(moved));
}

TEST(WeightBlock, WhatOneLeavesWithAKeeperAnotherFinds) {
  running_keeper running;
  const std::byte* where = nullptr;
  {
    weight_block first(bytes, keeper::ask(running.at, region("a model", bytes)));
    EXPECT_FALSE(first.filled());
    where = first.data();
    write_all(first);
    first.seal();
    EXPECT_EQ(first.claim().now(), state::to_fill) << first.claim().reason();
    EXPECT_EQ(first.data(), where) << "sealing moves nothing";
    EXPECT_TRUE(holds_all(first));
  }
  for (int i = 0; i < 2; ++i) {
    const weight_block next(bytes, keeper::ask(running.at, region("a model", bytes)));
    EXPECT_TRUE(next.filled());
    EXPECT_TRUE(holds_all(next));
  }
}

// As a program without a sanitizer would: those have a handler of their own, which makes an exit of the signal.
void write_in_the_midst(const weight_block& block) {
  std::signal(SIGSEGV, SIG_DFL);
  *const_cast<volatile std::byte*>(block.data() + bytes / 2) = std::byte{1};
}

TEST(WeightBlock, WritingToAFilledOneIsAFault) {
  running_keeper running;
  weight_block own(bytes, {}), kept(bytes, keeper::ask(running.at, region("a model", bytes)));
  own.seal();
  kept.seal();
  const weight_block found(bytes, keeper::ask(running.at, region("a model", bytes)));
  for (const weight_block* block : std::initializer_list<const weight_block*>{&own, &kept, &found}) {
    EXPECT_EXIT(write_in_the_midst(*block), ::testing::KilledBySignal(SIGSEGV), "");
  }
}

TEST(WeightBlock, AKeeperThatIsGoneCostsNothingButTheKeeping) {
  auto running = std::make_unique<running_keeper>();
  weight_block block(bytes, keeper::ask(running->at, region("a model", bytes)));
  write_all(block);
  running.reset();
  block.seal();
  EXPECT_EQ(block.claim().now(), state::alone);
  EXPECT_FALSE(block.claim().reason().empty());
  EXPECT_TRUE(holds_all(block));
}

TEST(WeightBlock, OneThatEndsUnsealedLeavesTheRegionToOthers) {
  running_keeper running;
  { const weight_block lost(bytes, keeper::ask(running.at, region("a model", bytes))); }
  weight_block next(bytes, keeper::ask(running.at, region("a model", bytes)));
  EXPECT_EQ(next.claim().now(), state::to_fill);
}

} // namespace
} // namespace troupe::cpu
