#include "simulation/report.hpp"

#include <algorithm>
#include <cstdio>

namespace troupe::simulation {

namespace {

template <class... T>
std::string format(const char* pattern, T... values) {
  char text[256];
  std::snprintf(text, sizeof text, pattern, values...);
  return text;
}

// Three digits that matter, with k, M or G.
std::string short_number(double x) {
  const char* unit = "";
  for (const char* next : {"k", "M", "G"}) {
    if (x < 1000) break;
    x /= 1000;
    unit = next;
  }
  return format(x < 10 ? "%.2f%s" : x < 100 ? "%.1f%s" : "%.0f%s", x, unit);
}

value milliseconds(const time_histogram& h) {
  value_object o;
  o.set("mean", h.mean() / 1e6);
  for (const auto& [name, q] : {std::pair("p50", 0.5), std::pair("p90", 0.9), std::pair("p99", 0.99)}) o.set(name, h.quantile(q) / 1e6);
  return o;
}

} // namespace

std::string text_report(const sweep& s) {
  std::string out = s.title + "\n";
  if (s.wanted.ttft_ns) out += format("goodput: first token within %.0f ms", *s.wanted.ttft_ns / 1e6);
  if (s.wanted.tpot_ns) out += format("%s within %.1f ms per later token", s.wanted.ttft_ns ? "," : "goodput:", *s.wanted.tpot_ns / 1e6);
  out += s.wanted.ttft_ns || s.wanted.tpot_ns ? "\n\n" : "\n";
  out += "nodes   GPUs   req/s   good/s  refused    tok/s   busy   TTFT ms: p50      p99   ITL ms: p50     p99";
  out += s.price_per_gpu_hour > 0 ? "   cost/Mtok\n" : "\n";
  for (const fleet_report& r : s.points) {
    const outcomes& t = r.total;
    const double offered = r.offered > 0 ? static_cast<double>(r.offered) : 1;
    out += format("%5d %6lld %7s %8s %7.1f%% %8s %5.0f%% %14.1f %8.1f %13.2f %7.2f", r.nodes, static_cast<long long>(r.gpus),
                  short_number(static_cast<double>(t.finished) / std::max(r.span_s, 1e-9)).c_str(), short_number(r.goodput()).c_str(),
                  100 * static_cast<double>(t.rejected) / offered, short_number(r.tokens_per_second()).c_str(), 100 * r.busy,
                  t.ttft.quantile(0.5) / 1e6, t.ttft.quantile(0.99) / 1e6, t.itl.quantile(0.5) / 1e6, t.itl.quantile(0.99) / 1e6);
    out += s.price_per_gpu_hour > 0 ? format(" %11.3f\n", r.cost_per_million_tokens(s.price_per_gpu_hour)) : "\n";
  }
  return out;
}

value json_report(const sweep& s) {
  value_array points;
  for (const fleet_report& r : s.points) {
    const outcomes& t = r.total;
    value_object o;
    o.set("nodes", r.nodes);
    o.set("gpus", r.gpus);
    o.set("seconds", r.span_s);
    o.set("requests_offered", static_cast<std::int64_t>(r.offered));
    o.set("requests_finished", static_cast<std::int64_t>(t.finished));
    o.set("requests_refused", static_cast<std::int64_t>(t.rejected));
    o.set("goodput_requests_per_second", r.goodput());
    o.set("prompt_tokens", t.prompt_tokens);
    o.set("cached_tokens", t.cached_tokens);
    o.set("output_tokens", t.output_tokens);
    o.set("output_tokens_per_second", r.tokens_per_second());
    o.set("preemptions", static_cast<std::int64_t>(t.preemptions));
    o.set("busy", r.busy);
    o.set("ttft_ms", milliseconds(t.ttft));
    o.set("itl_ms", milliseconds(t.itl));
    o.set("e2e_ms", milliseconds(t.e2e));
    if (s.price_per_gpu_hour > 0) o.set("cost_per_million_tokens", r.cost_per_million_tokens(s.price_per_gpu_hour));
    points.emplace_back(std::move(o));
  }
  value_object root;
  root.set("title", s.title);
  root.set("ttft_objective_ms", s.wanted.ttft_ns ? value(*s.wanted.ttft_ns / 1e6) : value());
  root.set("tpot_objective_ms", s.wanted.tpot_ns ? value(*s.wanted.tpot_ns / 1e6) : value());
  root.set("points", std::move(points));
  return root;
}

} // namespace troupe::simulation
