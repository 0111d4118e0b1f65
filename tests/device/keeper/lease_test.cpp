// Leased regions: one client writes at a time, and what it wrote is there for the next.
#include <sys/wait.h>

#include <future>

#include "device/keeper/keeper.hpp"
#include "tests/device/keeper/keeper_testing.hpp"

namespace troupe::keeper {
namespace {

using namespace testing;
using state = claim::state;

constexpr int size_seals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW;

region_request leased(const std::string& manifest, std::uint64_t bytes = 4096) {
  return {1, manifest, bytes, memory_kind::host, region_use::leased};
}

file_descriptor writable_memory(const std::string& text, std::uint64_t bytes = 4096, int seals = size_seals) {
  file_descriptor file(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(file.get(), static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(pwrite(file.get(), text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  EXPECT_EQ(fcntl(file.get(), F_ADD_SEALS, seals), 0);
  return file;
}

// A client that has the region, new, with `text` in it.
claim first_lease(const address& at, const std::string& manifest, const std::string& text) {
  claim mine = ask(at, leased(manifest));
  EXPECT_EQ(mine.now(), state::to_fill) << mine.reason();
  EXPECT_TRUE(mine.seal(writable_memory(text).get())) << mine.reason();
  return mine;
}

TEST(Lease, TheNextClientFindsWhatTheOneBeforeWroteAndMayWriteOn) {
  running_keeper keeper;
  { const claim first = first_lease(keeper.at, "a pool", "one"); }
  for (const std::string text : {"one", "two", "six"}) {
    claim next = ask(keeper.at, leased("a pool"));
    ASSERT_EQ(next.now(), state::complete) << next.reason();
    const file_descriptor memory = next.take_memory();
    EXPECT_EQ(text_in(memory, 3), text);
    const char* const written = text == "one" ? "two" : "six";
    EXPECT_EQ(pwrite(memory.get(), written, 3, 0), 3);
    EXPECT_EQ(ftruncate(memory.get(), 1), -1) << "its size is for good";
  }
  const auto counts = query(keeper.at, 1);
  ASSERT_TRUE(counts);
  EXPECT_EQ(counts->regions, 1U);
  EXPECT_EQ(counts->slot_bytes, 4096U);
  EXPECT_EQ(counts->kept_bytes + counts->sealed + counts->handed_out, 0U) << "these count what is constant";
}

TEST(Lease, ASecondClientWaitsUntilTheFirstHasEnded) {
  running_keeper keeper({.wait_notice = std::chrono::milliseconds(400)});
  auto first = std::make_unique<claim>(first_lease(keeper.at, "a pool", "one"));
  auto second = std::async(std::launch::async, [&] { return ask(keeper.at, leased("a pool")); });
  EXPECT_EQ(second.wait_for(std::chrono::milliseconds(200)), std::future_status::timeout);
  first.reset();
  const claim got = second.get();
  EXPECT_EQ(got.now(), state::complete) << got.reason();
}

TEST(Lease, OfThoseWhoWaitOneGetsItAtATime) {
  running_keeper keeper({.wait_notice = std::chrono::milliseconds(1000)});
  auto first = std::make_unique<claim>(first_lease(keeper.at, "a pool", "one"));
  std::atomic<int> inside{0}, most{0}, served{0};
  std::vector<std::jthread> others;
  for (int i = 0; i < 4; ++i) {
    others.emplace_back([&] {
      const claim mine = ask(keeper.at, leased("a pool"));
      if (mine.now() != state::complete) return;
      most = std::max(most.load(), ++inside);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      ++served;
      --inside;
    });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  first.reset();
  others.clear();
  EXPECT_EQ(most, 1);
  EXPECT_EQ(served, 4);
}

TEST(Lease, WhoWaitsForOneThatDoesNotEndGoesWithout) {
  running_keeper keeper({.wait_notice = std::chrono::milliseconds(20)});
  const claim first = first_lease(keeper.at, "a pool", "one");
  const claim second = ask(keeper.at, leased("a pool"));
  EXPECT_EQ(second.now(), state::alone);
  EXPECT_NE(second.reason().find("on lease"), std::string::npos) << second.reason();
}

TEST(Lease, OfAProcessThatIsKilledEndsWithIt) {
  running_keeper keeper;
  int ready[2];
  ASSERT_EQ(pipe2(ready, O_CLOEXEC), 0);
  const pid_t child = fork();
  if (child == 0) {
    claim mine = ask(keeper.at, leased("a pool"));
    const bool sealed = mine.seal(writable_memory("child").get());
    if (::write(ready[1], sealed ? "y" : "n", 1) == 1) pause();
    _exit(1);
  }
  char sealed = 0;
  ASSERT_EQ(::read(ready[0], &sealed, 1), 1);
  EXPECT_EQ(sealed, 'y');
  kill(child, SIGKILL);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  claim next = ask(keeper.at, leased("a pool"));
  ASSERT_EQ(next.now(), state::complete) << next.reason();
  EXPECT_EQ(text_in(next.take_memory(), 5), "child");
  close(ready[0]);
  close(ready[1]);
}

TEST(Lease, AnotherManifestTakesTheSlotEvenFromOneThatIsLeased) {
  running_keeper keeper;
  auto old = std::make_unique<claim>(first_lease(keeper.at, "a pool", "one"));
  const claim other = first_lease(keeper.at, "another pool", "two");
  EXPECT_EQ(query(keeper.at)->regions, 1U);
  old.reset(); // ends nobody else's lease
  const claim waits = ask(keeper.at, leased("another pool"));
  EXPECT_EQ(waits.now(), state::alone) << "it is still leased";
}

TEST(Lease, AFillerThatGoesBeforeItGaveItsMemoryLeavesNothing) {
  running_keeper keeper;
  { const claim mine = ask(keeper.at, leased("a pool")); }
  EXPECT_EQ(ask(keeper.at, leased("a pool")).now(), state::to_fill);
}

TEST(Lease, MemoryWhoseSizeCouldChangeIsRefusedAndSoIsAnotherUse) {
  running_keeper keeper;
  {
    claim mine = ask(keeper.at, leased("a pool"));
    EXPECT_FALSE(mine.seal(writable_memory("x", 4096, F_SEAL_SHRINK).get()));
    EXPECT_NE(mine.reason().find("sealed"), std::string::npos) << mine.reason();
  }
  {
    claim mine = ask(keeper.at, leased("a pool"));
    EXPECT_FALSE(mine.seal(memory_of("x").get())) << "nobody could write to it";
  }
  { const claim mine = first_lease(keeper.at, "a pool", "one"); }
  const claim constant = ask(keeper.at, region("a pool"));
  EXPECT_EQ(constant.now(), state::alone);
  EXPECT_NE(constant.reason().find("another use"), std::string::npos) << constant.reason();
}

} // namespace
} // namespace troupe::keeper
