#include "device/cpu/host_limits.hpp"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <limits>
#include <thread>

namespace troupe::cpu {
namespace {

// Files of /proc and /sys have no size to ask for. A file that is not there is empty.
std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Takes the first word off `text`.
std::string_view next_word(std::string_view& text) {
  constexpr std::string_view blanks = " \t\n";
  text.remove_prefix(std::min(text.find_first_not_of(blanks), text.size()));
  const std::string_view word = text.substr(0, text.find_first_of(blanks));
  text.remove_prefix(word.size());
  return word;
}

std::optional<std::uint64_t> next_number(std::string_view& text) {
  const std::string_view word = next_word(text);
  std::uint64_t number = 0;
  const auto [end, fault] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (word.empty() || fault != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return number;
}

// The number behind the line's first word `name`.
std::optional<std::uint64_t> field(std::string_view text, std::string_view name) {
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (next_word(line) == name) return next_number(line);
  }
  return std::nullopt;
}

std::uint64_t saturating_sum(std::uint64_t a, std::uint64_t b) {
  std::uint64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<std::uint64_t>::max() : sum;
}

template <class Number>
void lower(std::optional<Number>& bound, std::optional<Number> other) {
  if (other) bound = bound ? std::min(*bound, *other) : *other;
}

std::vector<std::filesystem::path> group_folders(const std::filesystem::path& root) {
  std::vector<std::filesystem::path> folders;
  for (const std::string& path : group_paths(read_text(root / "proc/self/cgroup"))) folders.push_back(root / "sys/fs/cgroup" / path);
  return folders;
}

} // namespace

std::optional<std::uint64_t> meminfo_available(std::string_view meminfo) {
  const auto kibibytes = field(meminfo, "MemAvailable:");
  if (!kibibytes || *kibibytes > std::numeric_limits<std::uint64_t>::max() / 1024) return std::nullopt;
  return *kibibytes * 1024;
}

std::optional<std::uint64_t> group_memory(std::string_view max, std::string_view current, std::string_view stat) {
  const auto limit = next_number(max); // "max" is no number
  const auto used = next_number(current);
  if (!limit || !used) return std::nullopt;
  const std::uint64_t files = saturating_sum(field(stat, "active_file").value_or(0), field(stat, "inactive_file").value_or(0));
  const std::uint64_t kept = *used - std::min(*used, files);
  return *limit - std::min(*limit, kept);
}

std::optional<int> group_cores(std::string_view cpu_max) {
  const auto quota = next_number(cpu_max);
  const auto period = next_number(cpu_max);
  if (!quota || !period || *quota == 0 || *period == 0) return std::nullopt;
  const std::uint64_t cores = (*quota - 1) / *period + 1;
  return static_cast<int>(std::min<std::uint64_t>(cores, std::numeric_limits<int>::max()));
}

std::vector<std::string> group_paths(std::string_view self_cgroup) {
  while (!self_cgroup.empty()) {
    const std::string_view line = self_cgroup.substr(0, self_cgroup.find('\n'));
    self_cgroup.remove_prefix(std::min(line.size() + 1, self_cgroup.size()));
    if (!line.starts_with("0::/")) continue; // the others are version 1's
    std::string path(line.substr(4));
    if (path.find("..") != std::string::npos) break; // outside of what this process sees
    std::vector<std::string> paths;
    while (!path.empty()) {
      paths.push_back(path);
      const std::size_t slash = path.rfind('/');
      path.resize(slash == std::string::npos ? 0 : slash);
    }
    paths.emplace_back();
    return paths;
  }
  return {std::string()};
}

std::optional<std::uint64_t> available_memory(const std::filesystem::path& root) {
  std::optional<std::uint64_t> least = meminfo_available(read_text(root / "proc/meminfo"));
  for (const std::filesystem::path& folder : group_folders(root)) {
    lower(least, group_memory(read_text(folder / "memory.max"), read_text(folder / "memory.current"), read_text(folder / "memory.stat")));
  }
  return least;
}

std::uint64_t machine_number(const std::filesystem::path& root) {
  const std::filesystem::path kernel = root / "proc/sys/kernel";
  std::uint64_t hash = 14695981039346656037U; // FNV-1a
  for (const char c : read_text(kernel / "random/boot_id") + read_text(kernel / "hostname")) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211U;
  }
  return hash;
}

int usable_cores(const std::filesystem::path& root) {
  std::optional<int> cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  for (const std::filesystem::path& folder : group_folders(root)) lower(cores, group_cores(read_text(folder / "cpu.max")));
  return *cores;
}

} // namespace troupe::cpu
