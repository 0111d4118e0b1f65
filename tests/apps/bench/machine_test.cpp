#include "apps/bench/machine.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace troupe::bench {
namespace {

TEST(machine, reads_names_and_versions_as_linux_writes_them) {
  EXPECT_EQ(parse_cpu_name("processor\t: 0\nmodel name\t: Some Processor @ 2.00GHz\nmodel name\t: other\n"), "Some Processor @ 2.00GHz");
  EXPECT_EQ(parse_cpu_name("processor\t: 0\n"), "");
  EXPECT_EQ(parse_driver_version(
                "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.03  Release Build  (x@y)\nGCC version: 12.2.0\n"),
            "580.159.03");
  EXPECT_EQ(parse_driver_version("nothing of the kind\nGCC version: 12.2.0"), "");
}

TEST(machine, knows_the_one_it_runs_on) {
  const machine_info here = read_machine();
  EXPECT_GE(here.cores, 1);
  EXPECT_GT(here.memory_bytes, std::uint64_t{1} << 24);
  EXPECT_EQ(here.gpu, "");
}

TEST(machine, reading_has_a_rate) {
  const double rate = measure_cpu_read_bandwidth(std::size_t{16} << 20, 2);
  EXPECT_GT(rate, 1e8);
  EXPECT_LT(rate, 1e14);
}

TEST(machine, a_process_has_been_running_for_a_while) {
  const auto seconds = seconds_since_process_start();
  ASSERT_TRUE(seconds);
  EXPECT_LT(*seconds, 3600);
  EXPECT_GE(*seconds_since_process_start(), *seconds);
}

TEST(machine, a_result_begins_with_where_it_comes_from) {
  result_header header{"latency", "1.2.3", "troupe bench latency x", "cpu", {}, {1e10, 0}};
  const value_object out = start_result(header);
  EXPECT_EQ(out.find("kind")->as_string(), "latency");
  EXPECT_EQ(out.find("version")->as_string(), "1.2.3");
  EXPECT_THAT(out.find("date")->as_string(), testing::MatchesRegex("[0-9]+-[0-9]+-[0-9]+T[0-9]+:[0-9]+:[0-9]+Z"));
  EXPECT_TRUE(out.find("machine")->find("gpu")->is_null());
  EXPECT_TRUE(out.find("ceilings")->find("matmul_flops_per_second")->is_null());
  EXPECT_EQ(out.find("ceilings")->find("read_bytes_per_second")->as_double(), 1e10);
}

TEST(machine, the_command_line_is_one_that_a_shell_reads_back) {
  EXPECT_THAT(command_line(), testing::StartsWith("apps_tests"));
  const auto line = [](std::initializer_list<std::string> words) {
    std::string text;
    for (const auto& w : words) text += w + std::string(1, '\0');
    return command_line_of(text);
  };
  EXPECT_EQ(line({"/somewhere/else/troupe", "bench", "latency", "a model", "--steps", "8"}), "troupe bench latency 'a model' --steps 8");
  EXPECT_EQ(line({"troupe", "it's", "", "$HOME"}), "troupe 'it'\\''s' '' '$HOME'");
  EXPECT_EQ(line({"troupe", "bench", "--json", "/here/x.json", "--seed", "1", "--trace=t.json", "--json=y", "m"}), "troupe bench --seed 1 m");
}

} // namespace
} // namespace troupe::bench
