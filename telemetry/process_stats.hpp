// What /proc says about this process, under the names that Prometheus clients agree on (process_*).
#pragma once

#include <optional>
#include <string_view>

namespace troupe::telemetry {

struct process_stats {
  double cpu_seconds = 0;        // user and system
  double start_time_seconds = 0; // Unix time
  double threads = 0;
  double virtual_bytes = 0;
  double resident_bytes = 0;
};

// `stat` is the text of /proc/PID/stat (proc(5)); the name in it may hold spaces and parentheses. Unix times in seconds.
// None when a field is missing or no number.
std::optional<process_stats> parse_process_stat(std::string_view stat, double boot_time, double ticks_per_second, double page_bytes);

// The "btime" line of /proc/stat.
std::optional<double> parse_boot_time(std::string_view text);

std::optional<process_stats> read_process_stats();
std::optional<double> count_open_fds();
std::optional<double> max_open_fds(); // none when unlimited

} // namespace troupe::telemetry
