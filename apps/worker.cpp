// troupe worker: one device actor in a process of its own. Started by the serving process, not by hand.
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <optional>

#include "actors/serving.hpp"
#include "apps/commands.hpp"
#include "apps/engine.hpp"
#include "apps/keeper_line.hpp"

namespace troupe::apps {

namespace {

struct worker_options {
  engine_options engine;
  std::uint16_t parent_port = 0;
  bool keeper = false;
};

int work(const worker_options& o) {
  std::optional<keeper::access> keep;
  if (o.keeper) keep = {read_keeper_line(), [](const std::string& line) { spdlog::info("{}", line); }};
  auto source = open_source(o.engine);
  const text_side text = load_text_side(*source);
  return actors::run_device_worker(
      o.parent_port, make_executor_factory(o.engine, source, open_draft_model(o.engine, *text.tokens), text.tokens->vocab_size(), keep));
}

} // namespace

void add_worker(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<worker_options>();
  CLI::App* command = app.add_subcommand("worker", "A device process (started by serve)");
  command->group(""); // not shown in the help
  add_engine_flags(*command, options->engine);
  command->add_option("--parent-port", options->parent_port, "port of the serving process")->required();
  command->add_flag("--keeper", options->keeper, "standard input begins with a line that names a keeper of weights");
  command->callback([options, &exit_code] { exit_code = work(*options); });
}

} // namespace troupe::apps
