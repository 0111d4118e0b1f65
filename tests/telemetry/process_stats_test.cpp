#include "telemetry/process_stats.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <ctime>
#include <string>
#include <thread>

namespace troupe::telemetry {
namespace {

const std::string tail = " S 1 2 3 0 -1 4194304 10 0 0 0 250 50 7 8 20 0 17 0 12345 4096000 1000 18446744073709551615 1 1 0\n";

TEST(ProcessStats, NameWithSpacesAndParenthesesDoesNotShiftTheFields) {
  const auto stats = parse_process_stat("42 (a) b (c 99 1)" + tail, 1'000'000, 100, 4096);
  ASSERT_TRUE(stats);
  EXPECT_DOUBLE_EQ(stats->cpu_seconds, 3.0);
  EXPECT_DOUBLE_EQ(stats->threads, 17);
  EXPECT_DOUBLE_EQ(stats->start_time_seconds, 1'000'123.45);
  EXPECT_DOUBLE_EQ(stats->virtual_bytes, 4'096'000);
  EXPECT_DOUBLE_EQ(stats->resident_bytes, 4'096'000);
}

TEST(ProcessStats, TruncatedOrBrokenTextIsRefused) {
  EXPECT_FALSE(parse_process_stat("", 0, 100, 4096));
  EXPECT_FALSE(parse_process_stat("42 (a", 0, 100, 4096));
  EXPECT_FALSE(parse_process_stat("42 (a)" + tail.substr(0, 40), 0, 100, 4096));
  EXPECT_FALSE(parse_process_stat("42 (a) S 1 2 3 0 -1 4194304 10 0 0 0 x50 50 7 8 20 0 17 0 12345 4096000 1000 1\n", 0, 100, 4096));
  EXPECT_FALSE(parse_boot_time("cpu 1 2 3\n"));
  EXPECT_FALSE(parse_boot_time("cpu 1\nbtime 12x\n"));
  EXPECT_DOUBLE_EQ(parse_boot_time("cpu 1\nbtime 1700000000\nprocesses 5\n").value(), 1.7e9);
}

TEST(ProcessStats, OfThisProcessArePlausible) {
  const auto before = read_process_stats();
  ASSERT_TRUE(before);
  EXPECT_GT(before->resident_bytes, 1 << 20);
  EXPECT_GE(before->virtual_bytes, before->resident_bytes);
  const auto now = static_cast<double>(std::time(nullptr));
  EXPECT_LE(before->start_time_seconds, now + 2);
  EXPECT_GT(before->start_time_seconds, now - 3600);
  std::thread other([&] {
    const auto during = read_process_stats();
    ASSERT_TRUE(during);
    EXPECT_GE(during->threads, before->threads + 1);
  });
  other.join();
}

TEST(ProcessStats, OpenFilesAreCountedWithoutTheListingItself) {
  const auto before = count_open_fds();
  ASSERT_TRUE(before);
  const int extra = open("/dev/null", O_RDONLY);
  ASSERT_GE(extra, 0);
  EXPECT_EQ(count_open_fds().value(), *before + 1);
  close(extra);
  EXPECT_EQ(count_open_fds().value(), *before);
}

} // namespace
} // namespace troupe::telemetry
