// Device memory that outlives its maker, on a real GPU; skipped where there is none. CUDA survives no fork, so every process that uses the
// device is this program, started again to run one of the roles below.
#include "device/cuda/kept_memory.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "device/cuda/check.hpp"
#include "device/cuda/pinned_ring.hpp"
#include "device/cuda/stream.hpp"
#include "tests/device/keeper/keeper_testing.hpp"

namespace troupe::cuda {
namespace {

using keeper::testing::running_keeper;
using state = keeper::claim::state;

constexpr std::size_t bytes = (std::size_t{9} << 20) + 300;
constexpr const char* role_variable = "TROUPE_KEPT_MEMORY_ROLE"; // ROLE NAME TOKEN
constexpr int as_expected = 0, not_to_fill = 10, not_complete = 11, other_bytes = 12, no_fault = 13;

std::byte expected_byte(std::size_t i) { return static_cast<std::byte>(i * 7 % 251); }

keeper::claim ask_for_region(const keeper::address& at) {
  return keeper::ask(at, {1, "bytes of " + device_uuid(0), kept_size(bytes, 0), keeper::memory_kind::cuda});
}

// Copies out and compares; throws device_error.
bool holds_all(const std::byte* on_device) {
  const stream on;
  pinned_ring down(1, bytes);
  std::byte* const host = down.next();
  std::memset(host, 0, bytes);
  copy_out(on, host, on_device, bytes);
  on.synchronize();
  for (std::size_t i = 0; i < bytes; ++i) {
    if (host[i] != expected_byte(i)) return false;
  }
  return true;
}

void write_all(std::byte* on_device) {
  const stream on;
  pinned_ring up(1, bytes);
  std::byte* const host = up.next();
  for (std::size_t i = 0; i < bytes; ++i) host[i] = expected_byte(i);
  copy_in(on, on_device, host, bytes);
  on.synchronize();
}

// A write to an address that nobody has mapped: the context is lost, as by a kernel's bug.
bool fault_at(std::byte* where) {
  const stream on;
  return cudaMemsetAsync(where, 1, 64, on.handle()) != cudaSuccess || cudaStreamSynchronize(on.handle()) != cudaSuccess;
}

[[noreturn]] void fill_and_crash(const keeper::address& at) {
  kept_memory memory(ask_for_region(at), 0);
  if (memory.claim().now() != state::to_fill) _exit(not_to_fill);
  std::byte* const block = memory.take(bytes);
  write_all(block);
  memory.seal();
  if (memory.claim().now() != state::to_fill || !holds_all(block)) _exit(other_bytes);
  if (!fault_at(reinterpret_cast<std::byte*>(std::uintptr_t{1} << 40))) _exit(no_fault);
  abort();
}

[[noreturn]] void fill_half_and_die(const keeper::address& at) {
  kept_memory memory(ask_for_region(at), 0);
  if (memory.claim().now() != state::to_fill) _exit(not_to_fill);
  write_all(memory.take(bytes));
  raise(SIGKILL);
  abort();
}

[[noreturn]] void read_and_write(const keeper::address& at) {
  kept_memory memory(ask_for_region(at), 0);
  if (memory.claim().now() != state::complete) _exit(not_complete);
  std::byte* const block = memory.take(bytes);
  if (!memory.filled() || !holds_all(block)) _exit(other_bytes);
  _exit(fault_at(block + 4096) ? as_expected : no_fault);
}

[[noreturn]] void read_and_leave(const keeper::address& at) {
  kept_memory memory(ask_for_region(at), 0);
  if (memory.claim().now() != state::complete) _exit(not_complete);
  std::byte* const block = memory.take(bytes);
  const bool same = holds_all(block);
  memory.give_back(block);
  _exit(same ? as_expected : other_bytes);
}

keeper::claim ask_for_lease(const keeper::address& at) {
  return keeper::ask(at, {2, "a pool on " + device_uuid(0), kept_size(bytes, 0), keeper::memory_kind::cuda, keeper::region_use::leased});
}

// Writes all of it, and is killed while the device writes the block's first half over and over, with what is there already.
[[noreturn]] void lease_and_die(const keeper::address& at) {
  kept_memory memory(ask_for_lease(at), 0, keeper::region_use::leased);
  if (memory.claim().now() != state::to_fill) _exit(not_to_fill);
  std::byte* const block = memory.take(bytes);
  if (memory.claim().now() != state::to_fill) _exit(not_to_fill);
  write_all(block);
  const stream on;
  for (int i = 0; i < 200; ++i) {
    cudaMemcpyAsync(block + bytes / 2, block, bytes / 4, cudaMemcpyDeviceToDevice, on.handle()); // what nobody acknowledged
  }
  raise(SIGKILL);
  abort();
}

// Finds what was acknowledged, and may write.
[[noreturn]] void lease_and_read(const keeper::address& at) {
  kept_memory memory(ask_for_lease(at), 0, keeper::region_use::leased);
  if (memory.claim().now() != state::complete) _exit(not_complete);
  std::byte* const block = memory.take(bytes);
  if (!memory.filled()) _exit(not_complete);
  const stream on;
  pinned_ring down(1, bytes);
  std::byte* const host = down.next();
  copy_out(on, host, block, bytes);
  on.synchronize();
  for (std::size_t i = 0; i < bytes; ++i) {
    const bool written_again = i >= bytes / 2 && i < bytes / 2 + bytes / 4;
    if (!written_again && host[i] != expected_byte(i)) _exit(other_bytes);
  }
  write_all(block);
  _exit(holds_all(block) ? as_expected : other_bytes);
}

// Runs before any test when this program was started for a role.
const bool ran_a_role = [] {
  const char* const given = std::getenv(role_variable);
  if (given == nullptr) return false;
  const std::string line = given, role = line.substr(0, line.find(' ')), rest = line.substr(role.size() + 1);
  const keeper::address at{rest.substr(0, rest.find(' ')), rest.substr(rest.find(' ') + 1)};
  use_device(0);
  if (role == "crash") fill_and_crash(at);
  if (role == "half") fill_half_and_die(at);
  if (role == "write") read_and_write(at);
  if (role == "lease") lease_and_die(at);
  if (role == "find") lease_and_read(at);
  read_and_leave(at);
}();

class kept_memory_test : public ::testing::Test {
 protected:
  void SetUp() override {
    if (device_count() == 0) GTEST_SKIP() << "no CUDA device on this machine";
    use_device(0);
  }

  // Its status as of waitpid.
  int run(const std::string& role) {
    const pid_t child = fork();
    if (child == 0) { // calls nothing of CUDA before it is another program
      setenv(role_variable, (role + " " + keeper_.at.name + " " + keeper_.at.token).c_str(), 1);
      execl("/proc/self/exe", "kept_memory_test", static_cast<char*>(nullptr));
      _exit(127);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return status;
  }

  running_keeper keeper_;
};

TEST_F(kept_memory_test, outlives_processes_that_fault_and_is_read_only_in_the_next_ones) {
  const std::size_t unused = device_memory().unused;
  int status = run("crash");
  ASSERT_TRUE(WIFSIGNALED(status)) << "exit code " << WEXITSTATUS(status);
  EXPECT_EQ(WTERMSIG(status), SIGABRT);
  EXPECT_EQ(keeper::query(keeper_.at)->kept_bytes, kept_size(bytes, 0));
  EXPECT_LE(device_memory().unused + kept_size(bytes, 0), unused) << "held by nothing but the keeper's file";
  status = run("read");
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == as_expected) << status;
  for (int i = 0; i < 2; ++i) { // writers fault and change nothing
    status = run("write");
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == as_expected) << status;
  }
  status = run("read");
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == as_expected) << status;
}

TEST_F(kept_memory_test, of_a_filler_that_dies_half_way_goes_back_to_the_device) {
  const std::size_t unused = device_memory().unused;
  int status = run("half");
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
  EXPECT_EQ(keeper::query(keeper_.at)->regions, 0U);
  EXPECT_GE(device_memory().unused + (std::size_t{1} << 20), unused);
  status = run("crash"); // the region is to be filled again
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT) << status;
}

TEST_F(kept_memory_test, on_lease_is_written_by_one_process_after_another) {
  int status = run("lease");
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
  EXPECT_EQ(keeper::query(keeper_.at)->regions, 1U);
  for (int i = 0; i < 2; ++i) {
    status = run("find");
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == as_expected) << status;
  }
}

TEST_F(kept_memory_test, that_does_not_fit_is_refused_with_the_numbers) {
  const std::size_t whole = device_memory().whole;
  kept_memory memory(keeper::ask(keeper_.at, {2, "too much", kept_size(2 * whole, 0), keeper::memory_kind::cuda}), 0);
  ASSERT_EQ(memory.claim().now(), state::to_fill) << memory.claim().reason();
  try {
    memory.take(2 * whole);
    FAIL() << "more than the device has was given";
  } catch (const device_error& e) {
    EXPECT_NE(std::string(e.what()).find("are unused"), std::string::npos) << e.what();
  }
}

} // namespace
} // namespace troupe::cuda
