#include "apps/bench/machine.hpp"

#include <sched.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "core/json.hpp"

namespace troupe::bench {
namespace {

std::string text_of(const char* path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::int32_t usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return static_cast<std::int32_t>(std::max(1U, std::thread::hardware_concurrency()));
  return CPU_COUNT(&set);
}

// Words that a shell would not read as one are put in quotes.
std::string shell_word(const std::string& word) {
  constexpr const char* plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./,:=+@%";
  if (!word.empty() && word.find_first_not_of(plain) == std::string::npos) return word;
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32] = {};
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

// Sums so that the compiler must read everything; eight at a time, to keep loads in flight.
std::uint64_t sum(const std::uint64_t* from, std::size_t count) {
  std::uint64_t a[8] = {};
  for (std::size_t i = 0; i + 8 <= count; i += 8) {
    for (std::size_t j = 0; j < 8; ++j) a[j] += from[i + j];
  }
  return a[0] + a[1] + a[2] + a[3] + a[4] + a[5] + a[6] + a[7];
}

value machine_json(const machine_info& m) {
  value_object out;
  out.set("cpu", m.cpu);
  out.set("cores", std::int64_t{m.cores});
  out.set("memory_bytes", static_cast<std::int64_t>(m.memory_bytes));
  out.set("gpu", m.gpu.empty() ? value() : value(m.gpu));
  out.set("driver", m.driver.empty() ? value() : value(m.driver));
  out.set("cuda", m.cuda.empty() ? value() : value(m.cuda));
  return out;
}

value ceilings_json(const rate_ceilings& c) {
  value_object out;
  out.set("read_bytes_per_second", c.read_bytes_per_second > 0 ? value(c.read_bytes_per_second) : value());
  out.set("matmul_flops_per_second", c.matmul_flops_per_second > 0 ? value(c.matmul_flops_per_second) : value());
  return out;
}

} // namespace

std::string parse_cpu_name(const std::string& cpuinfo) {
  std::istringstream lines(cpuinfo);
  for (std::string line; std::getline(lines, line);) {
    const auto colon = line.find(':');
    if (line.starts_with("model name") && colon != std::string::npos) {
      const auto from = line.find_first_not_of(" \t", colon + 1);
      return from == std::string::npos ? std::string() : line.substr(from);
    }
  }
  return {};
}

std::string parse_driver_version(const std::string& text) {
  // "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.03  Release Build  (..)": the first word that is digits and dots.
  std::istringstream words(text.substr(0, text.find('\n')));
  for (std::string word; words >> word;) {
    if (word.find('.') != std::string::npos && word.find_first_not_of("0123456789.") == std::string::npos) return word;
  }
  return {};
}

std::string read_driver_version() { return parse_driver_version(text_of("/proc/driver/nvidia/version")); }

machine_info read_machine() {
  machine_info m;
  m.cpu = parse_cpu_name(text_of("/proc/cpuinfo"));
  m.cores = usable_cores();
  struct sysinfo info {};
  if (sysinfo(&info) == 0) m.memory_bytes = static_cast<std::uint64_t>(info.totalram) * info.mem_unit;
  return m;
}

double measure_cpu_read_bandwidth(std::size_t bytes, std::int32_t threads) {
  const auto workers = static_cast<std::size_t>(std::max(1, threads > 0 ? threads : usable_cores()));
  const std::size_t share = std::max<std::size_t>(bytes / workers / sizeof(std::uint64_t) / 8 * 8, 8);
  std::vector<std::vector<std::uint64_t>> data(workers);
  std::atomic<std::uint64_t> kept{0};
  const auto everywhere = [&](auto work) {
    std::vector<std::jthread> crew;
    for (std::size_t i = 0; i < workers; ++i) crew.emplace_back([&, i] { work(i); });
  };
  everywhere([&](std::size_t i) { data[i].assign(share, i + 1); });
  double best = 0;
  for (int round = 0; round < 5; ++round) {
    const auto start = std::chrono::steady_clock::now();
    everywhere([&](std::size_t i) { kept += sum(data[i].data(), share); });
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    best = std::max(best, static_cast<double>(share * workers * sizeof(std::uint64_t)) / seconds);
  }
  return kept == 0 ? 0 : best;
}

std::optional<double> seconds_since_process_start() {
  // Field 22 of proc(5)'s stat: ticks after boot; the name in field 2 may hold spaces and parentheses.
  const std::string stat = text_of("/proc/self/stat");
  const auto name_end = stat.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(stat.substr(name_end + 1));
  std::string word;
  for (int field = 3; field <= 22; ++field) {
    if (!(fields >> word)) return std::nullopt;
  }
  const double started = std::strtod(word.c_str(), nullptr) / static_cast<double>(sysconf(_SC_CLK_TCK));
  timespec now{};
  if (clock_gettime(CLOCK_BOOTTIME, &now) != 0) return std::nullopt;
  const double seconds = static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9 - started;
  return seconds >= 0 ? std::optional(seconds) : std::nullopt;
}

value_object start_result(const result_header& header) {
  value_object out;
  out.set("kind", header.kind);
  out.set("version", header.version);
  out.set("date", utc_now());
  out.set("command", header.command);
  out.set("device", header.device);
  out.set("machine", machine_json(header.machine));
  out.set("ceilings", ceilings_json(header.ceilings));
  return out;
}

std::string command_line_of(const std::string& cmdline) {
  std::string out;
  bool skip = false; // a flag's value
  for (std::size_t at = 0; at < cmdline.size();) {
    const auto end = std::min(cmdline.find('\0', at), cmdline.size());
    std::string word = cmdline.substr(at, end - at);
    const bool first = at == 0;
    at = end + 1;
    if (std::exchange(skip, word == "--json" || word == "--trace")) {
      skip = false;
      continue;
    }
    if (skip || word.starts_with("--json=") || word.starts_with("--trace=")) continue;
    if (first) word = word.substr(word.rfind('/') + 1); // where the program lay does not matter
    out += (first ? "" : " ") + shell_word(word);
  }
  return out;
}

std::string command_line() { return command_line_of(text_of("/proc/self/cmdline")); }

bool write_result(const std::string& path, const value& result) {
  const std::string text = json::dump(result);
  if (path == "-") return std::printf("%s\n", text.c_str()) >= 0 && std::fflush(stdout) == 0;
  std::ofstream file(path, std::ios::binary);
  file << text << '\n';
  file.close();
  return !file.fail();
}

} // namespace troupe::bench
