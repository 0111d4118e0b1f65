// troupe keeper: holds weights for device processes that may end. Started by the serving process, not by hand.
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <stdexcept>

#include "apps/commands.hpp"
#include "apps/keeper_line.hpp"
#include "device/keeper/keeper.hpp"

namespace troupe::apps {

namespace {

int keep() {
  for (const int s : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) signal(s, SIG_IGN); // the owner decides: the end of its pipe
  prctl(PR_SET_PDEATHSIG, SIGKILL);                                          // a keeper that is stopped reads no pipe
  keeper::server server(read_keeper_line(), [](const std::string& line) { spdlog::info("keeper: {}", line); });
  server.run(STDIN_FILENO);
  return 0;
}

} // namespace

void add_keeper(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("keeper", "Holds weights for device processes (started by serve)");
  command->group(""); // not shown in the help
  command->callback([&exit_code] { exit_code = keep(); });
}

} // namespace troupe::apps
