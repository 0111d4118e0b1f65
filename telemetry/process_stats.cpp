#include "telemetry/process_stats.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>

namespace troupe::telemetry {
namespace {

std::optional<double> number(std::string_view text) {
  std::uint64_t parsed = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), parsed);
  if (failure != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return static_cast<double>(parsed);
}

std::optional<std::string> read_text(const char* path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

} // namespace

std::optional<process_stats> parse_process_stat(std::string_view stat, double boot_time, double ticks_per_second, double page_bytes) {
  const auto name_end = stat.rfind(')');
  if (name_end == std::string_view::npos) return std::nullopt;
  std::array<std::string_view, 22> fields; // proc(5) numbers them from 1; fields[0] is number 3, the state
  auto rest = stat.substr(name_end + 1);
  for (auto& field : fields) {
    const auto from = rest.find_first_not_of(" \n");
    if (from == std::string_view::npos) return std::nullopt;
    rest.remove_prefix(from);
    field = rest.substr(0, rest.find_first_of(" \n"));
    rest.remove_prefix(field.size());
  }
  const auto nth = [&](std::size_t proc_number) { return number(fields[proc_number - 3]); };
  const auto user = nth(14), system = nth(15), threads = nth(20), start = nth(22), size = nth(23), pages = nth(24);
  if (!user || !system || !threads || !start || !size || !pages) return std::nullopt;
  return process_stats{(*user + *system) / ticks_per_second, boot_time + *start / ticks_per_second, *threads, *size, *pages * page_bytes};
}

std::optional<double> parse_boot_time(std::string_view text) {
  constexpr std::string_view key = "\nbtime ";
  const auto at = text.find(key);
  if (at == std::string_view::npos) return std::nullopt;
  const auto tail = text.substr(at + key.size());
  return number(tail.substr(0, tail.find('\n')));
}

std::optional<process_stats> read_process_stats() {
  const auto stat = read_text("/proc/self/stat");
  const auto system = read_text("/proc/stat");
  const auto boot = system ? parse_boot_time(*system) : std::nullopt;
  const long ticks = sysconf(_SC_CLK_TCK), page = sysconf(_SC_PAGESIZE);
  if (!stat || !boot || ticks <= 0 || page <= 0) return std::nullopt;
  return parse_process_stat(*stat, *boot, static_cast<double>(ticks), static_cast<double>(page));
}

std::optional<double> count_open_fds() {
  std::error_code failure;
  std::filesystem::directory_iterator entries("/proc/self/fd", failure);
  double count = -1; // the listing itself holds one
  for (; !failure && entries != std::filesystem::directory_iterator(); entries.increment(failure)) ++count;
  if (failure || count < 0) return std::nullopt;
  return count;
}

std::optional<double> max_open_fds() {
  rlimit bounds{};
  if (getrlimit(RLIMIT_NOFILE, &bounds) != 0 || bounds.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return static_cast<double>(bounds.rlim_cur);
}

} // namespace troupe::telemetry
