// troupe upgrade: a running server's device processes get another program, under load. And `troupe worker-protocol`, by which a server
// asks a program whether it would do.
#include "apps/upgrade.hpp"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "actors/worker_protocol.hpp"
#include "apps/admin/upgrade_command.hpp"
#include "apps/commands.hpp"

namespace troupe::apps {

namespace {

constexpr std::chrono::milliseconds kProgramAnswers{10'000};

// `runs`: the program that is run since an earlier upgrade, none before the first.
admin_socket::outcome upgrade(const upgrade_host& host, std::optional<actors::worker_program>& runs, const std::string& text,
                              const admin_socket::tell_fn& tell) {
  const auto heard = parse_upgrade_command(text);
  if (const auto* refusal = std::get_if<std::string>(&heard)) return {false, *refusal};
  const auto& command = std::get<upgrade_command>(heard);
  const std::string path = command.path.empty() ? host.own : command.path;
  const auto found = actors::find_worker_program(path, kProgramAnswers);
  if (const auto* refusal = std::get_if<std::string>(&found)) return {false, *refusal};
  const auto& program = std::get<actors::worker_program>(found);
  spdlog::info("upgrade: {} are to run {} ({})", host.whose, path, program.version);
  if (auto failure = host.replace(program.command, command.start_deadline, tell)) {
    actors::close_program(program);
    return {false, *failure};
  }
  if (runs) actors::close_program(*runs);
  runs = program;
  return {true, host.whose + " run version " + program.version};
}

} // namespace

std::unique_ptr<admin_socket> listen_for_upgrades(upgrade_host host) {
  try {
    return std::make_unique<admin_socket>(admin_name(getpid()),
                                          [host = std::move(host), runs = std::make_shared<std::optional<actors::worker_program>>()](
                                              const std::string& text, const admin_socket::tell_fn& tell) {
                                            const auto how = upgrade(host, *runs, text, tell);
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

void add_upgrade_flags(CLI::App& command, upgrade_flags& flags) {
  command.add_option("--program", flags.program, "the new program (default: what now lies where the running one's lay)");
  command
      .add_option("--start-deadline", flags.start_deadline_s,
                  "seconds that the new program's device processes may take to start, and that their group may take to be up before")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str();
}

int ask_for_upgrade(const upgrade_flags& flags, const char* command) {
  upgrade_command wanted{std::chrono::seconds(flags.start_deadline_s), {}};
  if (!flags.program.empty()) wanted.path = std::filesystem::absolute(flags.program).string();
  const auto how = ask_server(flags.pid, to_text(wanted), [](const std::string& line) {
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  });
  if (how.done) {
    std::printf("%s\n", how.text.c_str());
  } else {
    std::fprintf(stderr, "%s: %s\n", command, how.text.c_str());
  }
  return how.done ? 0 : 1;
}

void add_upgrade(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<upgrade_flags>();
  CLI::App* command = app.add_subcommand("upgrade", "Give a running server's device processes on this machine another program, under load");
  command->add_option("--pid", flags->pid, "process id of `troupe serve`, or of `troupe node`")->required()->check(CLI::PositiveNumber);
  add_upgrade_flags(*command, *flags);
  command->callback([flags, &exit_code] { exit_code = ask_for_upgrade(*flags, "troupe upgrade"); });
  CLI::App* protocol = app.add_subcommand("worker-protocol", "Say which protocol this program's device processes speak");
  protocol->group(""); // not shown in the help
  protocol->callback([] { std::printf("%s\n", actors::worker_protocol_line(TROUPE_VERSION).c_str()); });
}

} // namespace troupe::apps
