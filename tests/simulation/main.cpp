// The unit tests; or, with --seeds, the fault simulation over as many seeds as wanted:
//   simulation_tests --seeds 1000000 [--first S]      stops at the first seed that breaks a promise, and prints its events
#include <gtest/gtest.h>

#include <charconv>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string_view>

#include "tests/simulation/world.hpp"

namespace {

using namespace troupe::test;

std::optional<std::uint64_t> number(std::string_view text) {
  std::uint64_t n = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (failed != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return n;
}

int run_seeds(std::uint64_t first, std::uint64_t count) {
  coverage seen;
  for (std::uint64_t i = 0; i < count; ++i) {
    const run_report report = run_seed(first + i);
    seen.add(report.seen);
    if (report.broken) {
      for (const std::string& line : run_seed(first + i, true).log) std::printf("%s\n", line.c_str());
      std::printf("seed %llu: %s\n", static_cast<unsigned long long>(report.seed), report.broken->c_str());
      return 1;
    }
    if ((i + 1) % 10'000 == 0) std::fprintf(stderr, "%llu seeds\n", static_cast<unsigned long long>(i + 1));
  }
  const auto n = [](std::uint64_t x) { return static_cast<unsigned long long>(x); };
  std::printf(
      "%llu seeds kept every promise: %llu events, %llu steps, %llu requests finished, %llu refused, %llu cancelled,\n"
      "%llu preemptions, %llu faults, %llu kills, %llu missed deadlines, %llu stale results, %llu duplicates,\n"
      "%llu rows not finite, %llu quarantined, %llu escalations, %llu stop strings\n",
      n(count), n(seen.events), n(seen.steps), n(seen.finished), n(seen.refused), n(seen.cancelled), n(seen.preemptions), n(seen.faults),
      n(seen.kills), n(seen.missed), n(seen.stale), n(seen.duplicates), n(seen.numeric), n(seen.quarantined), n(seen.escalations),
      n(seen.stop_strings));
  return 0;
}

} // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  std::optional<std::uint64_t> seeds, first = 1;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view flag = argv[i];
    const auto value = i + 1 < argc ? number(argv[i + 1]) : std::nullopt;
    if (!value || (flag != "--seeds" && flag != "--first")) {
      std::fprintf(stderr, "usage: simulation_tests [--seeds N [--first S]] [GoogleTest's flags]\n");
      return 2;
    }
    (flag == "--seeds" ? seeds : first) = value;
  }
  return seeds ? run_seeds(*first, *seeds) : RUN_ALL_TESTS();
}
