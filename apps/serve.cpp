// troupe serve: HTTP in front of the actors, probes from the first moment, a drain on SIGTERM.
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <CLI/CLI.hpp>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <future>

#include "apps/cluster/head.hpp"
#include "apps/commands.hpp"
#include "apps/engine.hpp"
#include "apps/late_handler.hpp"
#include "apps/shutdown_signals.hpp"
#include "apps/tracing.hpp"
#include "apps/upgrade.hpp"
#include "transport/http/server.hpp"

namespace troupe::apps {

namespace {

struct serve_options {
  engine_options engine;
  http::server_options http;
  std::string api_key_file;
  int drain_timeout_s = 30;
  std::string trace_file;
  head_flags cluster;
};

void read_api_keys(serve_options& o) {
  if (const char* key = std::getenv("TROUPE_API_KEY"); key && *key) o.http.api_keys.emplace_back(key);
  if (o.api_key_file.empty()) return;
  std::ifstream file(o.api_key_file);
  if (!file) throw std::runtime_error("--api-key-file: cannot read " + o.api_key_file);
  const std::size_t before = o.http.api_keys.size();
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (!line.empty()) o.http.api_keys.push_back(line);
  }
  if (o.http.api_keys.size() == before) throw std::runtime_error("--api-key-file: no key in " + o.api_key_file); // never open by mistake
}

// Lets running requests end, up to the limit; a second signal cuts it short. Returns the exit code.
int drain(const serve_options& o, const shutdown_signals& signals, http::server& server, actors::serving& engine) {
  spdlog::info("draining: {} request(s) running, up to {} s", server.active_requests(), o.drain_timeout_s);
  server.drain();
  engine.drain();
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(o.drain_timeout_s);
  while (server.active_requests() > 0 && std::chrono::steady_clock::now() < limit) {
    if (signals.wait(std::chrono::milliseconds(50))) {
      spdlog::warn("second signal: ending now");
      return 0;
    }
    if (!engine.status().live) return 1;
  }
  return 0;
}

// Waits for a signal or for the serving side to give up. Returns the exit code.
int supervise(const serve_options& o, const shutdown_signals& signals, http::server& server, actors::serving& engine) {
  while (!signals.wait(std::chrono::milliseconds(200))) {
    if (const service_status now = engine.status(); !now.live) {
      spdlog::error("giving up: {}", now.reason);
      return 1;
    }
  }
  return drain(o, signals, server, engine);
}

// Connections leave files for the device process, the model and the log.
void keep_files_free(http::server_limits& limits) {
  constexpr rlim_t kReserve = 128;
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= limits.connections + kReserve) return;
  const std::size_t possible = files.rlim_cur > 2 * kReserve ? files.rlim_cur - kReserve : kReserve;
  spdlog::warn("the limit of open files ({}) leaves room for {} connections, not {}", files.rlim_cur, possible, limits.connections);
  limits.connections = possible;
}

int serve(serve_options& o) {
  const std::string program = program_path();
  const shutdown_signals signals;
  keep_files_free(o.http.limits);
  read_api_keys(o);
  o.http.version = TROUPE_VERSION;
  const auto timeline = open_trace(o.trace_file, shape_of(o.engine));
  auto metrics = make_metrics(o.engine);
  late_handler handler(served_names(o.engine));
  http::server_hooks hooks;
  hooks.metrics_text = [metrics] { return metrics->render(); };
  hooks.request_done = [metrics](std::string_view route, int status) { metrics->http_request(route, status); };
  hooks.slow_reader_dropped = [metrics] { metrics->slow_reader_dropped(); };

  std::unique_ptr<cluster_head> head; // outlives the engine
  check_head_flags(o.cluster);
  if (!o.cluster.listen.empty()) {
    head = std::make_unique<cluster_head>(
        o.cluster, [metrics] { metrics->node_refused(); }, [&handler](const std::string& for_what) { handler.say(for_what); });
    spdlog::info("cluster: nodes join at {}", head->address());
  }
  std::unique_ptr<actors::serving> engine; // outlives the server, whose requests call into it
  http::server server(o.http, handler, std::move(hooks));
  spdlog::info("listening on http://{}:{}", o.http.host, server.port());

  auto starting = std::async(std::launch::async, [&] { return start_engine(o.engine, metrics, timeline, {}, head.get()); });
  while (starting.wait_for(std::chrono::milliseconds(0)) != std::future_status::ready) {
    if (signals.wait(std::chrono::milliseconds(20))) {
      spdlog::warn("stopped while loading");
      std::_Exit(0); // nothing was accepted yet, and a load cannot be cut short
    }
  }
  engine = starting.get();
  handler.set(*engine);
  spdlog::info("ready: {} (context {})", engine->model().names.front(), engine->model().max_model_len);

  const auto upgrades =
      listen_for_upgrades({"the device processes" + std::string(head ? " of this machine" : ""), program,
                           [&engine](const std::string& to, std::chrono::milliseconds start_deadline, const admin_socket::tell_fn& tell) {
                             return engine->replace_program(to, start_deadline, tell);
                           }});
  const int code = supervise(o, signals, server, *engine);
  server.stop();
  engine->stop();
  if (timeline) spdlog::info("trace: {}", timeline->describe());
  return code;
}

} // namespace

void add_serve(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<serve_options>();
  CLI::App* command = app.add_subcommand("serve", "Serve a model over HTTP, with OpenAI's routes");
  add_engine_flags(*command, options->engine);
  command->add_option("--host", options->http.host, "address to listen on")->capture_default_str();
  command->add_option("--port", options->http.port, "port to listen on (0: any free one)")->capture_default_str();
  command->add_option("--api-key", options->http.api_keys, "key that clients must send (may be repeated; also TROUPE_API_KEY)");
  command->add_option("--api-key-file", options->api_key_file, "file with one key a line");
  command->add_option("--http-threads", options->http.threads, "network threads")->check(CLI::Range(1, 64))->capture_default_str();
  command->add_option("--max-connections", options->http.limits.connections, "open connections")->capture_default_str();
  command->add_option("--max-body-bytes", options->http.limits.body_bytes, "size of a request body")->capture_default_str();
  command->add_option("--drain-timeout", options->drain_timeout_s, "seconds that running requests get after SIGTERM")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  add_trace_flag(*command, options->trace_file);
  add_head_flags(*command, options->cluster);
  command->callback([options, &exit_code] { exit_code = serve(*options); });
}

} // namespace troupe::apps
