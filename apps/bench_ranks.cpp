#include "apps/bench_ranks.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>

#include "apps/device_choice.hpp"
#include "apps/engine.hpp"
#include "apps/groups/links.hpp"

namespace troupe::apps {
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

} // namespace

void add_place_flags(CLI::App& command, bench_place& place) { command.add_option("--bench-rank", place.rank)->group(""); }

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
  command.insert(command.end(), {"--bench-rank", ""});
  for (std::int32_t rank = 1; rank < ranks; ++rank) {
    command.back() = std::to_string(rank);
    others_.push_back(std::make_unique<actors::child_process>(command, rendezvous, [rank](int status) {
      if (status == 0 || status == SIGKILL || WIFSTOPPED(status)) return; // killed: by this process, at the end
      std::fprintf(stderr, "troupe bench: rank %d ended: %s\n", static_cast<int>(rank), actors::describe_status(status).c_str());
      std::_Exit(EXIT_FAILURE); // this rank may be waiting for it
    }));
  }
}

} // namespace troupe::apps
