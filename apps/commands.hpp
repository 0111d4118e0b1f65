// The program's subcommands. Each add_* registers flags and, when chosen, sets `exit_code`.
#pragma once

namespace CLI {
class App;
}

namespace troupe::apps {

void add_serve(CLI::App& app, int& exit_code);
void add_run(CLI::App& app, int& exit_code);
void add_inspect(CLI::App& app, int& exit_code);
void add_simulate(CLI::App& app, int& exit_code);
void add_bench_calibrate(CLI::App& bench, int& exit_code);
void add_worker(CLI::App& app, int& exit_code);
void add_keeper(CLI::App& app, int& exit_code);
void add_node(CLI::App& app, int& exit_code);
void add_upgrade(CLI::App& app, int& exit_code);
void add_bench_latency(CLI::App& bench, int& exit_code);
void add_bench_throughput(CLI::App& bench, int& exit_code);
void add_bench_ablation(CLI::App& bench, int& exit_code);
void add_bench_regress(CLI::App& bench, int& exit_code);
void add_bench_ceilings(CLI::App& bench, int& exit_code);

} // namespace troupe::apps
