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
  engine_options engine = o.engine;
  engine.isolate_devices = true;
  std::optional<keeper::access> keep;
  if (o.keeper) keep = {read_keeper_line(), [](const std::string& line) { spdlog::info("{}", line); }};
  actors::executor_factory factory; // made when this process is told its rank: until then its parent waits to hear from it
  return actors::run_device_worker(o.parent_port, [&](const actors::rank_start& place, const actors::publish_rendezvous& publish) {
    if (!factory) {
      auto source = open_source(engine);
      const text_side text = load_text_side(*source);
      factory = make_executor_factory(engine, source, open_draft_model(engine, *text.tokens), text.tokens->vocab_size(), keep);
    }
    return factory(place, publish);
  });
}

} // namespace

void add_worker(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<worker_options>();
  CLI::App* command = app.add_subcommand("worker", "A device process (started by serve)");
  command->group(""); // not shown in the help
  add_engine_flags(*command, options->engine);
  command->add_option("--parent-port", options->parent_port, "port of the serving process")->required();
  command->add_option("--interface", options->engine.interface, "in a cluster: address that this rank's links go through");
  command->add_flag("--across-nodes", options->engine.across_nodes, "in a cluster of several machines");
  command->add_flag("--keeper", options->keeper, "standard input begins with a line that names a keeper of weights");
  command->callback([options, &exit_code] { exit_code = work(*options); });
}

} // namespace troupe::apps
