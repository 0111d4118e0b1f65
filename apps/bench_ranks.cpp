#include "apps/bench_ranks.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <stdexcept>
#include <thread>

#include "apps/device_choice.hpp"
#include "apps/executor_factory.hpp"
#include "apps/groups/links.hpp"
#include "core/json.hpp"

namespace troupe::apps {

using namespace std::chrono_literals;

namespace {

// This process's own.
std::vector<std::string> command_words() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  if (words.empty()) throw std::runtime_error("/proc/self/cmdline cannot be read");
  words.front() = "/proc/self/exe";
  return words;
}

// What rank 0 has told this process, if that is another.
actors::rank_start started(std::int32_t size, const bench_place& place) {
  std::string rendezvous; // holds the group's token, so it comes by standard input and not in a command line
  if (place.rank > 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    std::getline(std::cin, rendezvous);
  }
  return {0, place.rank, size, 1, rendezvous};
}

std::filesystem::path report_of(const std::filesystem::path& folder, std::size_t rank) {
  return folder / ("rank-" + std::to_string(rank) + ".json");
}

} // namespace

void add_place_flags(CLI::App& command, bench_place& place) {
  command.add_option("--bench-rank", place.rank)->group("");
  command.add_option("--bench-report", place.report)->group("");
}

void leave_report(const bench_place& place, const value& figures) {
  const std::filesystem::path unfinished = place.report.string() + ".part";
  std::ofstream file(unfinished, std::ios::binary);
  file << json::dump(figures);
  file.close();
  if (file.fail()) throw std::runtime_error(unfinished.string() + ": cannot be written");
  std::filesystem::rename(unfinished, place.report);
}

bench_ranks::~bench_ranks() {
  others_.clear();
  std::error_code ignored;
  if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
}

value_array bench_ranks::reports(std::chrono::milliseconds patience) const {
  const auto until = std::chrono::steady_clock::now() + patience;
  value_array found;
  for (std::size_t rank = 1; rank <= others_.size(); ++rank) {
    const std::filesystem::path path = report_of(folder_, rank);
    while (!std::filesystem::exists(path) && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(10ms);
    std::ifstream file(path, std::ios::binary);
    auto report = json::parse(std::string{std::istreambuf_iterator<char>(file), {}});
    if (report) found.push_back(std::move(*report));
  }
  return found;
}

std::unique_ptr<step_executor> bench_ranks::make_executor(engine_options options, const bench_place& place,
                                                          const std::shared_ptr<const checkpoint>& source) {
  const std::int32_t size = options.group_size();
  const bool processes = size > 1 && choose_device(options, source->config()).gpu;
  options.isolate_devices = options.isolate_devices || processes;
  const auto factory = make_executor_factory(std::move(options), source, nullptr, source->config().vocab_size);
  if (!processes) return factory({}, {});
  return factory(started(size, place), [&](const std::string& published) { start(size, published); });
}

rank_context bench_ranks::join(std::int32_t size, const bench_place& place) {
  group_layout layout;
  layout.tp_size = size;
  layout.processes = true;
  const auto link = group_links(layout).open(started(size, place), [&](const std::string& published) { start(size, published); });
  return link->meet();
}

void bench_ranks::start(std::int32_t ranks, const std::string& rendezvous) {
  std::vector<std::string> command = command_words();
  std::string folder = (std::filesystem::temp_directory_path() / "troupe-bench-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) throw std::runtime_error(folder + ": cannot be made");
  folder_ = folder;
  command.insert(command.end(), {"--bench-rank", "", "--bench-report", ""});
  for (std::int32_t rank = 1; rank < ranks; ++rank) {
    command[command.size() - 3] = std::to_string(rank);
    command.back() = report_of(folder_, static_cast<std::size_t>(rank)).string();
    others_.push_back(std::make_unique<actors::child_process>(command, rendezvous, [rank](int status) {
      if (status == 0 || status == SIGKILL || WIFSTOPPED(status)) return; // killed: by this process, at the end
      std::fprintf(stderr, "troupe bench: rank %d ended: %s\n", static_cast<int>(rank), actors::describe_status(status).c_str());
      std::_Exit(EXIT_FAILURE); // this rank may be waiting for it
    }));
  }
}

} // namespace troupe::apps
