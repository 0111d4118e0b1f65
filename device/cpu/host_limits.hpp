// What of the machine this process may use: memory and cores, as Linux and its control groups (version 2) say.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::cpu {

// Bytes that can still be taken without swapping: MemAvailable, or what the process's control group and those around it leave, if
// less. None: not known. `root` is where /proc and /sys lie.
std::optional<std::uint64_t> available_memory(const std::filesystem::path& root = "/");
// The same for all processes that share such memory: of this machine's boot and host name, which a container has of its own.
std::uint64_t machine_number(const std::filesystem::path& root = "/");
// Cores that the process may run on, at most as many as its control groups' quotas pay for; at least 1.
int usable_cores(const std::filesystem::path& root = "/");

// The parsers behind them; each takes the text of a file, and gives none for text that it does not understand.

std::optional<std::uint64_t> meminfo_available(std::string_view meminfo); // bytes
// What memory.max leaves beside memory.current, whose file pages (memory.stat) can be dropped; none without a limit.
std::optional<std::uint64_t> group_memory(std::string_view max, std::string_view current, std::string_view stat);
// cpu.max, "<quota> <period>" in microseconds: cores, rounded up; none without a quota.
std::optional<int> group_cores(std::string_view cpu_max);
// /proc/self/cgroup: the process's group and those around it, as paths below the mount point, the root ("") last.
std::vector<std::string> group_paths(std::string_view self_cgroup);

} // namespace troupe::cpu
