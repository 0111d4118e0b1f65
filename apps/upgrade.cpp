// troupe upgrade: a running server's device processes get another program, under load. And `troupe worker-protocol`, by which a server
// asks a program whether it would do.
#include "apps/upgrade.hpp"

#include <spdlog/spdlog.h>
#include <sys/types.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <sstream>
#include <utility>
#include <variant>

#include "actors/worker_protocol.hpp"
#include "apps/commands.hpp"

namespace troupe::apps {

namespace {

constexpr std::chrono::milliseconds kProgramAnswers{10'000};

struct upgrade_options {
  pid_t pid = 0;
  std::filesystem::path program; // empty: where the server's own lies
  int start_deadline_s = 60;
};

// "upgrade SECONDS PATH"; an empty path is the server's own program.
admin_socket::outcome upgrade_engine(actors::serving& engine, const std::string& own, const std::string& command,
                                     const admin_socket::tell_fn& tell) {
  std::istringstream words(command);
  std::string verb, path;
  int seconds = 0;
  if (!(words >> verb >> seconds) || verb != "upgrade" || seconds < 1) return {false, "this server does not know the command"};
  std::getline(words >> std::ws, path);
  const auto found = actors::find_worker_program(path.empty() ? own : path, kProgramAnswers);
  if (const auto* refusal = std::get_if<std::string>(&found)) return {false, *refusal};
  const auto& program = std::get<actors::worker_program>(found);
  spdlog::info("upgrade: the device processes are to run {} ({})", path.empty() ? own : path, program.version);
  if (auto failure = engine.replace_program(program.command, std::chrono::seconds(seconds), tell)) {
    return {false, *failure + "; the device processes run the program of before"};
  }
  return {true, "the device processes run version " + program.version};
}

int upgrade(const upgrade_options& o) {
  std::string path;
  if (!o.program.empty()) path = std::filesystem::absolute(o.program).string();
  const auto how = ask_server(o.pid, "upgrade " + std::to_string(o.start_deadline_s) + " " + path,
                              [](const std::string& line) { std::printf("%s\n", line.c_str()); });
  if (how.done) {
    std::printf("%s\n", how.text.c_str());
  } else {
    std::fprintf(stderr, "troupe upgrade: %s\n", how.text.c_str());
  }
  return how.done ? 0 : 1;
}

} // namespace

std::unique_ptr<admin_socket> listen_for_upgrades(actors::serving& engine, std::string program) {
  try {
    return std::make_unique<admin_socket>(
        admin_name(getpid()), [&engine, own = std::move(program)](const std::string& command, const admin_socket::tell_fn& tell) {
          const auto how = upgrade_engine(engine, own, command, tell);
          how.done ? spdlog::info("upgrade: {}", how.text) : spdlog::error("upgrade: {}", how.text);
          return how;
        });
  } catch (const std::exception& e) {
    spdlog::warn("no upgrades: {}", e.what());
    return nullptr;
  }
}

std::string program_path() {
  std::error_code none;
  return std::filesystem::read_symlink("/proc/self/exe", none).string();
}

void add_upgrade(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<upgrade_options>();
  CLI::App* command = app.add_subcommand("upgrade", "Give a running server's device processes another program, under load");
  command->add_option("--pid", options->pid, "process id of `troupe serve`")->required()->check(CLI::PositiveNumber);
  command->add_option("--program", options->program, "the new program (default: what now lies where the server's own lay)");
  command->add_option("--start-deadline", options->start_deadline_s, "seconds that the new program's device processes may take to start")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str();
  command->callback([options, &exit_code] { exit_code = upgrade(*options); });
  CLI::App* protocol = app.add_subcommand("worker-protocol", "Say which protocol this program's device processes speak");
  protocol->group(""); // not shown in the help
  protocol->callback([] { std::printf("%s\n", actors::worker_protocol_line(TROUPE_VERSION).c_str()); });
}

} // namespace troupe::apps
