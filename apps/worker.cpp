// troupe worker: one device actor in a process of its own. Started by the serving process, not by hand.
#include <spdlog/spdlog.h>
#include <sys/prctl.h>

#include <CLI/CLI.hpp>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>

#include "actors/serving.hpp"
#include "apps/commands.hpp"
#include "apps/executor_factory.hpp"
#include "apps/keeper_line.hpp"
#include "apps/model_source.hpp"
#include "core/clock.hpp"
#include "core/process_clock.hpp"

namespace troupe::apps {

namespace {

struct worker_options {
  engine_options engine;
  std::uint16_t parent_port = 0; // 0: a standby, which is told
  std::string standby;           // "REPLICA:RANK", or empty
  bool keeper = false;
};

actors::rank_start place_of_standby(const std::string& text) {
  actors::rank_start place;
  char colon = 0;
  std::istringstream words(text);
  words >> place.replica >> colon >> place.rank;
  if (!words || colon != ':') throw std::invalid_argument("--stand-by-for " + text + ": not a replica and a rank");
  return place;
}

int work(const worker_options& o) {
  actors::leave_signals_to_parent();
  std::uint64_t begun_ns = process_begun_ns();
  engine_options engine = o.engine;
  engine.isolate_devices = true;
  std::optional<keeper::access> keep;
  if (o.keeper) keep = {read_keeper_line(), [](const std::string& line) { spdlog::info("{}", line); }};
  std::shared_ptr<const checkpoint> source;
  text_side text;
  const auto open = [&] { // once this process is told its rank, or while nobody waits for it: its parent waits to hear from it
    source = open_source(engine);
    text = load_text_side(*source);
  };
  const bool standby = !o.standby.empty();
  if (!standby && o.parent_port == 0) throw std::invalid_argument("a worker needs --parent-port or --stand-by-for");
  if (standby) {
    open();
    make_ready(engine, *source, place_of_standby(o.standby));
  }
  const actors::worker_call parent = actors::await_call(standby ? std::nullopt : std::optional(o.parent_port));
  if (standby) {
    begun_ns = now_ns();
    prctl(PR_SET_NAME, "troupe rank"); // /proc/PID/comm: its command line goes on to say that it stands by
  }
  start_times start(begun_ns);
  start.reached("process");
  actors::executor_factory factory;
  return actors::run_device_worker(parent, [&](const actors::rank_start& place, const actors::publish_rendezvous& publish) {
    start.reached("place");
    if (!factory) {
      if (!source) open();
      factory = make_executor_factory(engine, source, open_draft_model(engine, *text.tokens), text.tokens->vocab_size(), keep, &start);
      start.reached("model");
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
  command->add_option("--parent-port", options->parent_port, "port of the serving process");
  command->add_option("--stand-by-for", options->standby, "REPLICA:RANK: get ready for it, and be told the port on standard input");
  command->add_option("--interface", options->engine.interface, "in a cluster: address that this rank's links go through");
  command->add_flag("--across-nodes", options->engine.across_nodes, "in a cluster of several machines");
  command->add_flag("--keeper", options->keeper, "standard input begins with a line that names a keeper of weights");
  command->callback([options, &exit_code] { exit_code = work(*options); });
}

} // namespace troupe::apps
