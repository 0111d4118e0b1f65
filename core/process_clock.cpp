#include "core/process_clock.hpp"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <sstream>
#include <string>

#include "core/clock.hpp"

namespace troupe {
namespace {

// How far the clock of now_ns() is behind the time since boot; nothing, where the system does not tell. This thread may lose its core
// between the two clocks: the quickest of some looks counts.
std::optional<std::uint64_t> behind_boot_ns() {
  std::optional<std::uint64_t> offset;
  std::uint64_t quickest = std::numeric_limits<std::uint64_t>::max();
  for (int look = 0; look < 5; ++look) {
    timespec since_boot{};
    const std::uint64_t before = now_ns();
    if (clock_gettime(CLOCK_BOOTTIME, &since_boot) != 0) return std::nullopt;
    const std::uint64_t took = now_ns() - before;
    if (took >= quickest) continue;
    quickest = took;
    const std::uint64_t boot =
        static_cast<std::uint64_t>(since_boot.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(since_boot.tv_nsec);
    offset = boot - std::min(boot, before);
  }
  return offset;
}

} // namespace

std::uint64_t process_begun_ns() {
  const std::uint64_t now = now_ns();
  std::ifstream file("/proc/self/stat");
  const std::string stat{std::istreambuf_iterator<char>(file), {}};
  const std::size_t name_end = stat.rfind(')'); // the name may have spaces; behind it are fields 3 and on
  const std::optional<std::uint64_t> behind = behind_boot_ns();
  if (name_end == std::string::npos || !behind) return now;
  std::istringstream fields(stat.substr(name_end + 1));
  std::string skipped;
  for (int field = 3; field < 22; ++field) fields >> skipped;
  std::uint64_t ticks = 0; // field 22, starttime: since boot
  const long ticks_per_second = sysconf(_SC_CLK_TCK);
  if (!(fields >> ticks) || ticks_per_second <= 0) return now;
  const std::uint64_t begun = ticks * (1'000'000'000 / static_cast<std::uint64_t>(ticks_per_second));
  return std::min(now, begun - std::min(begun, *behind));
}

} // namespace troupe
