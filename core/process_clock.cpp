#include "core/process_clock.hpp"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include "core/clock.hpp"

namespace troupe {

std::uint64_t process_begun_ns() {
  const std::uint64_t now = now_ns();
  std::ifstream file("/proc/self/stat");
  const std::string stat{std::istreambuf_iterator<char>(file), {}};
  const std::size_t name_end = stat.rfind(')'); // the name may have spaces; behind it are fields 3 and on
  timespec since_boot{};
  if (name_end == std::string::npos || clock_gettime(CLOCK_BOOTTIME, &since_boot) != 0) return now;
  std::istringstream fields(stat.substr(name_end + 1));
  std::string skipped;
  for (int field = 3; field < 22; ++field) fields >> skipped;
  std::uint64_t ticks = 0; // field 22, starttime: since boot
  const long ticks_per_second = sysconf(_SC_CLK_TCK);
  if (!(fields >> ticks) || ticks_per_second <= 0) return now;
  const std::uint64_t begun = ticks * (1'000'000'000 / static_cast<std::uint64_t>(ticks_per_second));
  const std::uint64_t uptime =
      static_cast<std::uint64_t>(since_boot.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(since_boot.tv_nsec);
  return now - std::min(now, uptime - std::min(uptime, begun));
}

} // namespace troupe
