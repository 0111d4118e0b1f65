#include "apps/bench/ablation.hpp"

#include <algorithm>
#include <exception>
#include <stdexcept>

#include "apps/bench/text.hpp"

namespace troupe::bench {
namespace {

struct round_figures {
  std::vector<double> steps; // seconds
  double end_to_end = 0;
};

round_figures run_round(const ablation_variant& variant, const ablation_options& o, std::uint64_t seed) {
  const auto prompts = random_prompts(static_cast<std::size_t>(o.batch), o.prompt, variant.driver->info().vocab_size, seed);
  const driven_run run = variant.driver->run(prompts, {o.output, variant.plans_in_flight, std::nullopt});
  round_figures r;
  for (const decode_interval& i : decode_intervals(run, o.batch, 0)) r.steps.push_back(i.ms * 1e-3);
  const std::uint64_t last = *std::max_element(run.finished_ns.begin(), run.finished_ns.end());
  r.end_to_end = static_cast<double>(last - run.begin_ns) * 1e-9;
  if (r.steps.empty()) throw std::runtime_error("no step decoded the whole batch: more output tokens are wanted");
  return r;
}

double median(std::vector<double> samples) { return summarize(std::move(samples)).median; }

} // namespace

std::vector<variant_figures> run_ablation(const std::vector<ablation_variant>& variants, const ablation_options& o) {
  std::vector<std::vector<round_figures>> rounds(variants.size()); // [variant][round]
  std::vector<std::string> failures(variants.size());
  for (std::int32_t round = 0; round <= o.rounds; ++round) {
    for (std::size_t turn = 0; turn < variants.size(); ++turn) {
      const std::size_t v = (turn + static_cast<std::size_t>(round)) % variants.size();
      if (!failures[v].empty()) continue;
      try {
        auto figures = run_round(variants[v], o, o.seed + static_cast<std::uint64_t>(round));
        if (round > 0) rounds[v].push_back(std::move(figures));
      } catch (const std::exception& e) {
        if (v == 0) throw;
        failures[v] = e.what();
      }
    }
  }
  std::vector<variant_figures> out;
  for (std::size_t v = 0; v < variants.size(); ++v) {
    variant_figures f;
    f.name = variants[v].name;
    f.failure = failures[v];
    if (!f.failure.empty()) {
      out.push_back(std::move(f));
      continue;
    }
    std::vector<double> steps, ends, step_ratios, end_ratios;
    for (std::size_t r = 0; r < rounds[v].size(); ++r) {
      const round_figures& mine = rounds[v][r];
      steps.insert(steps.end(), mine.steps.begin(), mine.steps.end());
      ends.push_back(mine.end_to_end);
      step_ratios.push_back(median(mine.steps) / median(rounds[0][r].steps));
      end_ratios.push_back(mine.end_to_end / rounds[0][r].end_to_end);
    }
    f.step = summarize(std::move(steps));
    f.end_to_end = summarize(std::move(ends));
    f.step_ratio = median(std::move(step_ratios));
    f.end_to_end_ratio = median(std::move(end_ratios));
    out.push_back(std::move(f));
  }
  return out;
}

value_array ablation_json(const std::vector<variant_figures>& figures) {
  value_array out;
  for (const variant_figures& f : figures) {
    if (!f.failure.empty()) continue;
    value_object o;
    o.set("name", f.name);
    o.set("step_median_ms", f.step.median * 1e3);
    o.set("step_p99_ms", f.step.p99 * 1e3);
    o.set("steps", static_cast<std::int64_t>(f.step.count));
    o.set("end_to_end_median_ms", f.end_to_end.median * 1e3);
    o.set("end_to_end_p99_ms", f.end_to_end.p99 * 1e3);
    o.set("step_ratio", f.step_ratio);
    o.set("end_to_end_ratio", f.end_to_end_ratio);
    out.emplace_back(std::move(o));
  }
  return out;
}

std::string ablation_table(const std::vector<variant_figures>& figures) {
  std::string out = format("%-28s %11s %10s %8s %13s %10s %8s\n", "", "step ms", "p99 ms", "ratio", "end to end ms", "p99 ms", "ratio");
  for (const variant_figures& f : figures) {
    if (!f.failure.empty()) {
      out += format("%-28s FAILED: %.200s\n", f.name.c_str(), f.failure.c_str());
      continue;
    }
    out += format("%-28s %11.3f %10.3f %6.3f x %13.2f %10.2f %6.3f x\n", f.name.c_str(), f.step.median * 1e3, f.step.p99 * 1e3,
                  f.step_ratio, f.end_to_end.median * 1e3, f.end_to_end.p99 * 1e3, f.end_to_end_ratio);
  }
  return out;
}

} // namespace troupe::bench
