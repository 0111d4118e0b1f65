#include "device/cpu/host_limits.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <thread>

namespace troupe::cpu {
namespace {

TEST(HostLimits, MeminfoGivesWhatIsAvailableInBytes) {
  EXPECT_EQ(meminfo_available("MemTotal:       16 kB\nMemFree:  1 kB\nMemAvailable:    7 kB\nBuffers: 2 kB\n"), 7U * 1024);
  EXPECT_EQ(meminfo_available("MemTotal: 16 kB\nMemFree: 1 kB\n"), std::nullopt);
  EXPECT_EQ(meminfo_available("MemAvailable: many kB\n"), std::nullopt);
  EXPECT_EQ(meminfo_available("MemAvailable: 18446744073709551615 kB\n"), std::nullopt); // would overflow
  EXPECT_EQ(meminfo_available("MemAvailable:"), std::nullopt);
  EXPECT_EQ(meminfo_available(""), std::nullopt);
}

TEST(HostLimits, AGroupLeavesItsLimitLessWhatCannotBeDropped) {
  EXPECT_EQ(group_memory("1000\n", "600\n", ""), 400U);
  EXPECT_EQ(group_memory("1000\n", "600\n", "anon 300\ninactive_file 200\nactive_file 50\nfile 999\n"), 650U);
  EXPECT_EQ(group_memory("1000\n", "600\n", "inactive_file 18446744073709551615\nactive_file 5\n"), 1000U);
  EXPECT_EQ(group_memory("1000\n", "1200\n", ""), 0U); // the limit was lowered
  EXPECT_EQ(group_memory("max\n", "600\n", ""), std::nullopt);
  EXPECT_EQ(group_memory("1000\n", "", ""), std::nullopt);
  EXPECT_EQ(group_memory("", "", ""), std::nullopt);
}

TEST(HostLimits, AQuotaIsRoundedUpToWholeCores) {
  EXPECT_EQ(group_cores("200000 100000\n"), 2);
  EXPECT_EQ(group_cores("200001 100000\n"), 3);
  EXPECT_EQ(group_cores("1000 100000\n"), 1);
  EXPECT_EQ(group_cores("max 100000\n"), std::nullopt);
  EXPECT_EQ(group_cores("100000\n"), std::nullopt);
  EXPECT_EQ(group_cores("100000 0\n"), std::nullopt);
  EXPECT_EQ(group_cores("-5 100000\n"), std::nullopt);
  EXPECT_EQ(group_cores("18446744073709551615 1\n"), 2147483647);
  EXPECT_EQ(group_cores(""), std::nullopt);
}

TEST(HostLimits, GroupsAreTheProcesssOwnAndThoseAroundIt) {
  using paths = std::vector<std::string>;
  EXPECT_EQ(group_paths("0::/a/b\n"), (paths{"a/b", "a", ""}));
  EXPECT_EQ(group_paths("5:memory:/old\n0::/\n"), paths{""});
  EXPECT_EQ(group_paths("0::/../outside\n"), paths{""});
  EXPECT_EQ(group_paths(""), paths{""});
}

// A made-up /proc and /sys.
class HostTree : public ::testing::Test {
 protected:
  HostTree()
      : root_(std::filesystem::temp_directory_path() /
              ("troupe_host_" + std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()))) {
    std::filesystem::remove_all(root_);
  }
  ~HostTree() override {
    std::error_code ignored;
    std::filesystem::remove_all(root_, ignored);
  }
  void write(const std::string& path, std::string_view text) const {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }

  std::filesystem::path root_;
};

TEST_F(HostTree, TheTightestLimitCounts) {
  const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  EXPECT_EQ(available_memory(root_), std::nullopt);
  EXPECT_EQ(usable_cores(root_), cores);
  write("proc/meminfo", "MemAvailable: 100 kB\n");
  EXPECT_EQ(available_memory(root_), 102400U);
  write("proc/self/cgroup", "0::/outer/inner\n");
  write("sys/fs/cgroup/outer/inner/memory.max", "max\n");
  write("sys/fs/cgroup/outer/memory.max", "5000\n");
  write("sys/fs/cgroup/outer/memory.current", "1000\n");
  EXPECT_EQ(available_memory(root_), 4000U);
  write("sys/fs/cgroup/outer/memory.max", "500000\n");
  EXPECT_EQ(available_memory(root_), 102400U);
  write("sys/fs/cgroup/outer/inner/cpu.max", "max 100000\n");
  write("sys/fs/cgroup/outer/cpu.max", "50000 100000\n");
  EXPECT_EQ(usable_cores(root_), 1);
  write("sys/fs/cgroup/outer/cpu.max", "900000000 100000\n");
  EXPECT_EQ(usable_cores(root_), cores);
}

TEST_F(HostTree, ProcessesOfOneBootAndHostNameAreOnOneMachine) {
  write("proc/sys/kernel/random/boot_id", "one\n");
  write("proc/sys/kernel/hostname", "a\n");
  const std::uint64_t here = machine_number(root_);
  EXPECT_EQ(machine_number(root_), here);
  write("proc/sys/kernel/hostname", "b\n");
  EXPECT_NE(machine_number(root_), here);
  write("proc/sys/kernel/hostname", "a\n");
  write("proc/sys/kernel/random/boot_id", "two\n");
  EXPECT_NE(machine_number(root_), here);
}

} // namespace
} // namespace troupe::cpu
