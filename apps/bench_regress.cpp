// `troupe bench regress`: the performance regression test.
#include <CLI/CLI.hpp>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>

#include "apps/bench/regress.hpp"
#include "apps/commands.hpp"
#include "core/json.hpp"

namespace troupe::apps {
namespace {

struct regress_command {
  std::string before, after;
  bench::regress_tolerances tolerances;
};

std::optional<value> read_result(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file.is_open() || file.bad()) {
    std::fprintf(stderr, "troupe bench regress: %s cannot be read\n", path.c_str());
    return std::nullopt;
  }
  auto parsed = json::parse(text);
  if (parsed && parsed->is_object()) return std::move(*parsed);
  const std::string reason = parsed ? "not a JSON object" : parsed.failure().message;
  std::fprintf(stderr, "troupe bench regress: %s: %s\n", path.c_str(), reason.c_str());
  return std::nullopt;
}

int run_regress(const regress_command& o) {
  const auto before = read_result(o.before);
  const auto after = read_result(o.after);
  if (!before || !after) return 1;
  const bench::regress_report report = bench::compare_results(*before, *after, o.tolerances);
  std::fputs(bench::regress_table(report).c_str(), stdout);
  return report.passed() ? 0 : 1;
}

} // namespace

void add_bench_regress(CLI::App& bench, int& exit_code) {
  auto o = std::make_shared<regress_command>();
  auto* app = bench.add_subcommand("regress", "Compare two results by their ratios to their own ceilings; exit code 1 on a loss");
  app->add_option("OLD", o->before, "JSON of bench latency, throughput or ablation")->required();
  app->add_option("NEW", o->after, "JSON of the same bench, model and kind of machine")->required();
  app->add_option("--tolerance", o->tolerances.typical, "Relative change for the worse that is no loss yet")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  app->add_option("--tail-tolerance", o->tolerances.tail, "The same for figures made of p99, and for times to the first token under load")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  app->callback([o, &exit_code] { exit_code = run_regress(*o); });
}

} // namespace troupe::apps
