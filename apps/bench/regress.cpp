#include "apps/bench/regress.hpp"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "apps/bench/text.hpp"
#include "core/json.hpp"

namespace troupe::bench {
namespace {

// A figure of one result. `more_is_worse`: times are, rates are not.
struct figure {
  std::string name;
  std::string unit;
  double number = 0;
  bool more_is_worse = true;
  bool tail = false;
};

const value* at(const value& from, std::initializer_list<std::string_view> path) {
  const value* here = &from;
  for (const std::string_view key : path) {
    if (here == nullptr) return nullptr;
    here = here->find(key);
  }
  return here;
}

std::optional<double> number_at(const value& from, std::initializer_list<std::string_view> path) {
  const value* found = at(from, path);
  return found && found->is_number() ? std::optional(found->as_double()) : std::nullopt;
}

std::string text_at(const value& from, std::initializer_list<std::string_view> path) {
  const value* found = at(from, path);
  return found && found->is_string() ? found->as_string() : std::string();
}

const value_array& list_at(const value& from, std::string_view key) {
  static const value_array none;
  const value* found = from.find(key);
  return found && found->is_array() ? found->as_array() : none;
}

std::string whole(std::optional<double> x) { return x ? std::to_string(std::llround(*x)) : "?"; }

// Collects one result's figures; a figure whose number is missing is a problem.
class collector {
 public:
  collector(const value& result, std::string which, std::vector<std::string>& problems)
      : result_(result), which_(std::move(which)), problems_(problems) {
    read_rate_ = number_at(result, {"ceilings", "read_bytes_per_second"}).value_or(0);
    matmul_rate_ = number_at(result, {"ceilings", "matmul_flops_per_second"}).value_or(0);
    if (read_rate_ <= 0) problems_.push_back(which_ + ": no measured read bandwidth (ceilings.read_bytes_per_second)");
  }

  std::vector<figure> collect() {
    const std::string kind = text_at(result_, {"kind"});
    if (read_rate_ <= 0) return {};
    if (kind == "latency") latency();
    if (kind == "throughput") throughput();
    if (kind == "ablation") ablation();
    if (figures_.empty()) problems_.push_back(which_ + ": holds no figures");
    return std::move(figures_);
  }

 private:
  void add(std::string name, std::string unit, std::optional<double> number, bool more_is_worse, bool tail = false) {
    if (!number || !std::isfinite(*number) || *number <= 0) {
      problems_.push_back(which_ + ": " + name + ": the figure is missing");
      return;
    }
    figures_.push_back({std::move(name), std::move(unit), *number, more_is_worse, tail});
  }

  // Bytes that the ceiling reads in `ms`, in units of the weights: 1 would be a step that reads each weight once and does nothing else.
  std::optional<double> in_weights(std::optional<double> ms) const {
    const auto weights = number_at(result_, {"model", "streamed_weight_bytes"});
    if (!ms || !weights || *weights <= 0) return std::nullopt;
    return *ms * 1e-3 * read_rate_ / *weights;
  }

  void latency() {
    for (const value& d : list_at(result_, "decode")) {
      const std::string name = "decode, batch " + whole(number_at(d, {"batch"})) + ", context " + whole(number_at(d, {"context"}));
      const auto over = number_at(d, {"over_floor"}), median = number_at(d, {"median_ms"}), p99 = number_at(d, {"p99_ms"});
      add(name, "x floor", over, true);
      add(name + ", p99", "x floor", over && median && p99 ? std::optional(*over * *p99 / *median) : std::nullopt, true, true);
    }
    for (const value& p : list_at(result_, "prefill")) {
      const std::string name = "prefill of " + whole(number_at(p, {"prompt_tokens"}));
      if (matmul_rate_ > 0) {
        add(name, "of matmul peak", number_at(p, {"matmul_share"}), false);
      } else {
        add(name, "x weights' reading", in_weights(number_at(p, {"first_token_median_ms"})), true);
      }
    }
  }

  void throughput() {
    const auto rate = number_at(result_, {"throughput", "output_tokens_per_second"});
    const auto weights = number_at(result_, {"model", "streamed_weight_bytes"});
    add("output tokens", "a reading of the weights", rate && weights ? std::optional(*rate * *weights / read_rate_) : std::nullopt, false);
    add("time to the first token, median", "x weights' reading", in_weights(number_at(result_, {"latency_ms", "ttft", "median"})), true,
        true);
    add("inter-token latency, median", "x weights' reading", in_weights(number_at(result_, {"latency_ms", "itl", "median"})), true);
    add("inter-token latency, p99", "x median", number_at(result_, {"itl_p99_over_median"}), true, true);
  }

  void ablation() {
    for (const value& v : list_at(result_, "variants")) {
      if (text_at(v, {"name"}) != "full") continue; // the others say what its parts are worth
      add("full system, step", "x weights' reading", in_weights(number_at(v, {"step_median_ms"})), true);
      add("full system, end to end", "x weights' reading", in_weights(number_at(v, {"end_to_end_median_ms"})), true);
    }
  }

  const value& result_;
  std::string which_;
  std::vector<std::string>& problems_;
  double read_rate_ = 0, matmul_rate_ = 0;
  std::vector<figure> figures_;
};

void require_equal(const value& before, const value& after, std::initializer_list<std::string_view> path, const char* what,
                   std::vector<std::string>& problems) {
  const value* a = at(before, path);
  const value* b = at(after, path);
  const auto shown = [](const value* v) { return v ? json::dump(*v) : std::string("nothing"); };
  if (shown(a) != shown(b)) problems.push_back(std::string(what) + " differ: " + shown(a) + " and " + shown(b));
}

// What makes two results incomparable whatever their figures.
void check_comparable(const value& before, const value& after, std::vector<std::string>& problems) {
  const std::string kind = text_at(before, {"kind"});
  if (kind != "latency" && kind != "throughput" && kind != "ablation") {
    problems.push_back("OLD is no result of bench latency, throughput or ablation");
    return;
  }
  require_equal(before, after, {"kind"}, "the kinds of result", problems);
  require_equal(before, after, {"device"}, "the devices", problems);
  const bool gpu = text_at(before, {"device"}) == "cuda";
  require_equal(before, after, {"machine", gpu ? "gpu" : "cpu"}, gpu ? "the GPUs" : "the processors", problems);
  if (!gpu) require_equal(before, after, {"machine", "cores"}, "the numbers of cores", problems);
  require_equal(before, after, {"model", "shape"}, "the models' shapes", problems);
  require_equal(before, after, {"model", "streamed_weight_bytes"}, "the weights' bytes", problems);
  require_equal(before, after, {"workload"}, "the workloads", problems);
}

compared_figure compare(const figure& before, const figure& after, const regress_tolerances& tolerances) {
  compared_figure c{before.name, before.unit, before.number, after.number, 0, false};
  c.worse_by = before.more_is_worse ? after.number / before.number - 1 : before.number / after.number - 1;
  c.lost = c.worse_by > (before.tail ? tolerances.tail : tolerances.typical);
  return c;
}

} // namespace

bool regress_report::passed() const {
  return problems.empty() && std::none_of(figures.begin(), figures.end(), [](const compared_figure& f) { return f.lost; });
}

regress_report compare_results(const value& before, const value& after, const regress_tolerances& tolerances) {
  regress_report report;
  check_comparable(before, after, report.problems);
  if (!report.problems.empty()) return report;
  const auto old_figures = collector(before, "OLD", report.problems).collect();
  const auto new_figures = collector(after, "NEW", report.problems).collect();
  for (const figure& b : old_figures) {
    const auto same = [&](const figure& a) { return a.name == b.name && a.unit == b.unit; };
    const auto found = std::find_if(new_figures.begin(), new_figures.end(), same);
    if (found != new_figures.end()) {
      report.figures.push_back(compare(b, *found, tolerances));
    } else {
      report.problems.push_back("NEW: " + b.name + " (" + b.unit + ") is missing");
    }
  }
  return report;
}

std::string regress_table(const regress_report& report) {
  std::string out;
  if (!report.figures.empty()) out += format("%-38s %-24s %10s %10s %10s\n", "", "as a ratio", "old", "new", "change");
  for (const compared_figure& f : report.figures) {
    const char* verdict = f.lost ? "LOSS" : "";
    out +=
        format("%-38.60s %-24s %10.4g %10.4g %8.1f%% %s\n", f.name.c_str(), f.unit.c_str(), f.before, f.after, f.worse_by * 100, verdict);
  }
  for (const std::string& p : report.problems) out += p + "\n";
  out += report.passed() ? "no loss\n" : report.problems.empty() ? "there is a loss\n" : "not comparable\n";
  return out;
}

} // namespace troupe::bench
