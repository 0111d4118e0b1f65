// `troupe bench serve`: an open-loop load against a running OpenAI-type server, and what its users would have felt.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

#include "apps/bench/load.hpp"
#include "apps/bench/statistics.hpp"
#include "apps/bench/workload.hpp"

namespace CLI {
class App;
}

namespace troupe::apps {

struct bench_serve_options {
  bench::connection_options connection;
  bench::workload_options workload; // an empty model is asked for at /v1/models; a vocab_size of 0 too, else it is 1000
  std::size_t num_prompts = 100;
  std::size_t warmups = 0; // sent one after another before the run; not counted
  double request_rate = std::numeric_limits<double>::infinity();
  double burstiness = 1;
  std::size_t max_concurrency = std::numeric_limits<std::size_t>::max();
  std::string dataset; // a file of prompts; empty: random ones
  bench::objectives goodput;
  std::string json_file;  // empty: none; "-": standard output, in place of the table
  std::string trace_file; // for the requests as `troupe simulate --trace` reads them; empty: none
};

// Runs the load and prints the report. The exit code: 0, 1 when nothing could be run or no request went well, 130 when interrupted.
int run_bench_serve(const bench_serve_options& options);

// Adds the subcommand "serve" to `bench`; when it is chosen, `exit_code` is set. Bad options are CLI11 errors.
void add_bench_serve(CLI::App& bench, int& exit_code);

} // namespace troupe::apps
