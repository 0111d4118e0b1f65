// What a keeper promises to workers that behave.
#include "device/keeper/keeper.hpp"

#include <sys/wait.h>

#include <atomic>
#include <future>

#include "tests/device/keeper/keeper_testing.hpp"

namespace troupe::keeper {
namespace {

using namespace testing;
using state = claim::state;

TEST(Keeper, TheFirstClientFillsARegionAndTheNextOnesGetIt) {
  running_keeper keeper;
  fill(keeper.at, region("a model"), "weights");
  for (int i = 0; i < 3; ++i) {
    claim next = ask(keeper.at, region("a model"));
    ASSERT_EQ(next.now(), state::complete) << next.reason();
    EXPECT_EQ(text_in(next.take_memory(), 7), "weights");
  }
  const auto counts = query(keeper.at, 1);
  ASSERT_TRUE(counts);
  EXPECT_EQ(counts->slot_bytes, 4096U);
  EXPECT_EQ(counts->regions, 1U);
  EXPECT_EQ(counts->sealed, 1U);
  EXPECT_EQ(counts->handed_out, 3U);
}

TEST(Keeper, WhatItHoldsCannotBeWrittenByAnybody) {
  running_keeper keeper;
  fill(keeper.at, region("a model"), "weights");
  const file_descriptor memory = ask(keeper.at, region("a model")).take_memory();
  EXPECT_EQ(pwrite(memory.get(), "x", 1, 0), -1);
  EXPECT_EQ(ftruncate(memory.get(), 1), -1);
  EXPECT_EQ(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0), MAP_FAILED);
}

TEST(Keeper, ASecondClientWaitsForTheFirstOne) {
  running_keeper keeper({.wait_notice = std::chrono::milliseconds(20)});
  claim first = ask(keeper.at, region("a model"));
  ASSERT_EQ(first.now(), state::to_fill);
  auto second = std::async(std::launch::async, [&] { return ask(keeper.at, region("a model")); });
  EXPECT_EQ(second.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  ASSERT_TRUE(first.seal(memory_of("weights").get()));
  claim got = second.get();
  ASSERT_EQ(got.now(), state::complete) << got.reason();
  EXPECT_EQ(text_in(got.take_memory(), 7), "weights");
}

TEST(Keeper, AFillerThatGoesLeavesTheRegionToTheNextOfThoseThatWait) {
  running_keeper keeper;
  auto first = std::make_unique<claim>(ask(keeper.at, region("a model")));
  ASSERT_EQ(first->now(), state::to_fill);
  std::atomic<int> filled{0}, mapped{0};
  const auto client = [&] {
    claim mine = ask(keeper.at, region("a model"));
    if (mine.now() == state::to_fill && mine.seal(memory_of("weights").get())) ++filled;
    if (mine.now() == state::complete) ++mapped;
  };
  std::vector<std::jthread> others;
  for (int i = 0; i < 4; ++i) others.emplace_back(client);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  first.reset();
  others.clear();
  EXPECT_EQ(filled, 1);
  EXPECT_EQ(mapped, 3);
}

// The region belongs to the connection, and the system closes a process's connections however it ends.
TEST(Keeper, AFillerThatIsKilledLosesItsRegion) {
  running_keeper keeper;
  int ready[2];
  ASSERT_EQ(pipe2(ready, O_CLOEXEC), 0);
  const pid_t child = fork();
  if (child == 0) {
    const claim mine = ask(keeper.at, region("a model"));
    const char told = mine.now() == state::to_fill ? 'y' : 'n';
    _exit(write(ready[1], &told, 1) == 1 ? pause() : 1);
  }
  char told = 0;
  ASSERT_EQ(read(ready[0], &told, 1), 1);
  ASSERT_EQ(told, 'y');
  EXPECT_EQ(query(keeper.at)->regions, 0U) << "a region that is being filled is none yet";
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  fill(keeper.at, region("a model"), "again");
  EXPECT_EQ(text_in(ask(keeper.at, region("a model")).take_memory(), 5), "again");
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST(Keeper, AnotherNameInTheSlotGivesTheMemoryOfTheOldOneBack) {
  running_keeper keeper;
  fill(keeper.at, region("model.gguf of Monday"), "old");
  fill(keeper.at, region("another model", 8192, 2), "other");
  EXPECT_EQ(query(keeper.at)->kept_bytes, 4096U + 8192U);
  const claim newer = ask(keeper.at, region("model.gguf of Tuesday"));
  EXPECT_EQ(newer.now(), state::to_fill);
  EXPECT_EQ(query(keeper.at)->kept_bytes, 8192U) << "already before the new one is filled, which may need the room";
  EXPECT_EQ(ask(keeper.at, region("another model", 8192, 2)).now(), state::complete);
}

TEST(Keeper, AFillerWhoseSlotWasClaimedForAnotherNameIsRefused) {
  running_keeper keeper;
  claim slow = ask(keeper.at, region("old"));
  ASSERT_EQ(slow.now(), state::to_fill);
  fill(keeper.at, region("new"), "new");
  EXPECT_FALSE(slow.seal(memory_of("old").get()));
  EXPECT_NE(slow.reason().find("no longer"), std::string::npos) << slow.reason();
  EXPECT_EQ(text_in(ask(keeper.at, region("new")).take_memory(), 3), "new");
}

// Names are hashes: what counts is the text behind them.
TEST(Keeper, ARegionOfAnotherManifestUnderTheSameNameIsNotTaken) {
  running_keeper keeper;
  message head;
  head.kind = message_kind::claim;
  head.slot = 1;
  head.name = digest("a model");
  head.bytes = 4096;
  std::copy(keeper.at.token.begin(), keeper.at.token.end(), head.token);
  const file_descriptor socket = connect_to(keeper.at.name, std::chrono::seconds(1), std::chrono::seconds(1));
  ASSERT_TRUE(send_packet(socket.get(), head));
  packet got;
  ASSERT_EQ(receive_packet(socket.get(), got), reception::whole);
  ASSERT_EQ(got.head.kind, message_kind::fill);
  head.kind = message_kind::seal;
  ASSERT_TRUE(send_packet(socket.get(), head, memory_of("weights").get(), memory_of("a different model").get()));
  ASSERT_EQ(receive_packet(socket.get(), got), reception::whole);
  ASSERT_EQ(got.head.kind, message_kind::sealed);
  const claim mine = ask(keeper.at, region("a model"));
  EXPECT_EQ(mine.now(), state::alone);
  EXPECT_NE(mine.reason().find("manifest"), std::string::npos) << mine.reason();
}

TEST(Keeper, MemoryThatIsNotThereIsRefusedWithTheNumbers) {
  running_keeper keeper;
  const claim mine = ask(keeper.at, region("a model", std::uint64_t{1} << 45));
  EXPECT_EQ(mine.now(), state::alone);
  EXPECT_NE(mine.reason().find("no room for 35184372088832 bytes: "), std::string::npos) << mine.reason();
  EXPECT_NE(mine.reason().find("are available"), std::string::npos) << mine.reason();
}

TEST(Keeper, RegionsAreLimited) {
  running_keeper keeper({.regions = 2});
  fill(keeper.at, region("a", 4096, 1), "a");
  fill(keeper.at, region("b", 4096, 2), "b");
  const claim third = ask(keeper.at, region("c", 4096, 3));
  EXPECT_EQ(third.now(), state::alone);
  EXPECT_NE(third.reason().find("2 regions"), std::string::npos) << third.reason();
}

TEST(Keeper, ItEndsWithItsOwner) {
  const address at = random_address();
  { const running_keeper keeper({}, at); }
  EXPECT_FALSE(query(at));
  const running_keeper next({}, at); // the name is free at once
  EXPECT_TRUE(query(at));
}

TEST(Keeper, AClientWithoutAKeeperGoesOnAlone) {
  const auto begun = std::chrono::steady_clock::now();
  const claim mine = ask(random_address(), region("a model"));
  EXPECT_EQ(mine.now(), state::alone);
  EXPECT_NE(mine.reason().find("nobody listens"), std::string::npos) << mine.reason();
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(5));
}

TEST(Keeper, AClientWhoseKeeperDiesKeepsWhatItHas) {
  auto keeper = std::make_unique<running_keeper>();
  claim filling = ask(keeper->at, region("b", 4096, 2));
  fill(keeper->at, region("a model"), "weights");
  const file_descriptor memory = ask(keeper->at, region("a model")).take_memory();
  keeper.reset();
  EXPECT_EQ(text_in(memory, 7), "weights");
  EXPECT_FALSE(filling.seal(memory_of("b").get()));
}

} // namespace
} // namespace troupe::keeper
