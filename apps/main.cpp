// The `troupe` program: wiring only.
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <CLI/CLI.hpp>

#include <cstdio>
#include <exception>

#include "apps/bench_serve.hpp"
#include "apps/commands.hpp"

namespace {

int run_program(int argc, char** argv) {
  int exit_code = 0;
  CLI::App app("Troupe: an actor-based inference runtime for large language models", "troupe");
  app.set_version_flag("--version", TROUPE_VERSION);
  app.require_subcommand(1);
  troupe::apps::add_serve(app, exit_code);
  troupe::apps::add_run(app, exit_code);
  troupe::apps::add_upgrade(app, exit_code);
  troupe::apps::add_inspect(app, exit_code);
  troupe::apps::add_simulate(app, exit_code);
  troupe::apps::add_worker(app, exit_code);
  troupe::apps::add_keeper(app, exit_code);
  troupe::apps::add_node(app, exit_code);
  CLI::App* bench = app.add_subcommand("bench", "Measure");
  bench->require_subcommand(1);
  troupe::apps::add_bench_serve(*bench, exit_code);
  troupe::apps::add_bench_calibrate(*bench, exit_code);
  troupe::apps::add_bench_latency(*bench, exit_code);
  troupe::apps::add_bench_throughput(*bench, exit_code);
  troupe::apps::add_bench_ablation(*bench, exit_code);
  troupe::apps::add_bench_regress(*bench, exit_code);
  troupe::apps::add_bench_ceilings(*bench, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e);
  }
  return exit_code;
}

} // namespace

// Each connection is a file; the usual soft limit of 1024 would be met before any limit of ours.
void allow_all_files() {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
}

int main(int argc, char** argv) {
  allow_all_files();
  spdlog::set_default_logger(spdlog::stderr_color_mt("troupe")); // stdout is for answers
  spdlog::set_pattern("%Y-%m-%d %H:%M:%S.%e %^%l%$ %v");
  try {
    return run_program(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "troupe: %s\n", e.what());
    return 1;
  }
}
