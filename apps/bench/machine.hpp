// What a result needs beside its figures: on which machine, with which program and command, when.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/value.hpp"

namespace troupe::bench {

struct machine_info {
  std::string cpu;                // the processor's name as Linux gives it
  std::int32_t cores = 0;         // that this process may use
  std::uint64_t memory_bytes = 0; // of the machine
  std::string gpu;                // empty: none, or a program without CUDA
  std::string driver;             // of NVIDIA's kernel module, or empty
  std::string cuda;               // the CUDA runtime that the program uses, or empty
};

// What /proc says; the GPU's fields stay empty.
machine_info read_machine();
// "model name" of /proc/cpuinfo's text; empty when there is none.
std::string parse_cpu_name(const std::string& cpuinfo);
// Of NVIDIA's kernel module as /proc says; empty without one.
std::string read_driver_version();
// The version in /proc/driver/nvidia/version's text, as in "580.159.03"; empty when there is none.
std::string parse_driver_version(const std::string& text);

// Best rates that were measured in the same run; zero: not measured.
struct rate_ceilings {
  double read_bytes_per_second = 0;
  double matmul_flops_per_second = 0;
};

// Reading memory with all cores: the ceiling of decoding on a CPU. Takes `bytes` of memory for a while.
double measure_cpu_read_bandwidth(std::size_t bytes, std::int32_t threads);

// Seconds since this process was started, to 10 ms; none when /proc does not say.
std::optional<double> seconds_since_process_start();

struct result_header {
  std::string kind; // latency, throughput, ablation
  std::string version;
  std::string command;
  std::string device; // cpu or cuda
  machine_info machine;
  rate_ceilings ceilings;
};

// An object that begins with these, and the date (UTC, ISO 8601).
value_object start_result(const result_header& header);

// This process's command as one line that a shell would read back, without what says where its files go (--json, --trace).
std::string command_line();
// The same of /proc/PID/cmdline's text.
std::string command_line_of(const std::string& cmdline);

// Writes `text` and a newline to the file; "-" is standard output. False when that fails.
bool write_result(const std::string& path, const value& result);

} // namespace troupe::bench
