#include "apps/bench/report.hpp"

#include <algorithm>
#include <utility>

#include "apps/bench/text.hpp"

namespace troupe::bench {
namespace {

std::string latency_row(const char* name, const summary& seconds) {
  if (seconds.count == 0) return format("%-28s %10s %10s %10s %10s %10s\n", name, "-", "-", "-", "-", "-");
  return format("%-28s %10.2f %10.2f %10.2f %10.2f %10.2f\n", name, seconds.mean * 1e3, seconds.median * 1e3, seconds.p90 * 1e3,
                seconds.p99 * 1e3, seconds.max * 1e3);
}

value latency_object(const summary& seconds) {
  value_object out;
  out.set("count", static_cast<std::int64_t>(seconds.count));
  out.set("mean", seconds.mean * 1e3);
  out.set("median", seconds.median * 1e3);
  out.set("p90", seconds.p90 * 1e3);
  out.set("p99", seconds.p99 * 1e3);
  out.set("max", seconds.max * 1e3);
  return out;
}

std::string objectives_text(const objectives& wanted) {
  std::string out;
  const auto add = [&](const char* name, const std::optional<double>& limit) {
    if (limit) out += format("%s%s <= %g ms", out.empty() ? "" : ", ", name, *limit);
  };
  add("TTFT", wanted.ttft);
  add("TPOT", wanted.tpot);
  add("E2EL", wanted.e2el);
  return out;
}

} // namespace

std::string text_report(const totals& figures, const objectives& wanted) {
  std::string out;
  out += format("%-28s %10zu\n", "Requests that went well", figures.completed);
  out += format("%-28s %10zu\n", "Requests that failed", figures.failed);
  for (const auto& [kind, count] : figures.failures) out += format("  %-26.60s %10zu\n", kind.c_str(), count);
  out += format("%-28s %10.2f\n", "Duration (s)", figures.duration);
  out += format("%-28s %10zu\n", "Most requests at once", figures.peak_concurrency);
  out += format("%-28s %10lld\n", "Prompt tokens", static_cast<long long>(figures.prompt_tokens));
  out += format("%-28s %10lld\n", "Output tokens", static_cast<long long>(figures.output_tokens));
  out += format("%-28s %10.2f\n", "Requests/s", figures.requests_per_second);
  out += format("%-28s %10.2f\n", "Output tokens/s", figures.output_tokens_per_second);
  out += format("%-28s %10.2f\n", "Prompt + output tokens/s", figures.total_tokens_per_second);
  if (figures.goodput) out += format("%-28s %10.2f  (%s)\n", "Goodput (requests/s)", *figures.goodput, objectives_text(wanted).c_str());
  out += format("\n%-28s %10s %10s %10s %10s %10s\n", "Latency (ms)", "mean", "median", "p90", "p99", "max");
  out += latency_row("Time to first token (TTFT)", figures.ttft);
  out += latency_row("Time per output token (TPOT)", figures.tpot);
  out += latency_row("Inter-token latency (ITL)", figures.itl);
  out += latency_row("End to end (E2EL)", figures.e2el);
  out += latency_row("Sent after it was due", figures.send_delay);
  return out;
}

value json_report(const totals& figures, const objectives& wanted) {
  value_object requests, throughput, latency, failures, out;
  requests.set("completed", static_cast<std::int64_t>(figures.completed));
  requests.set("failed", static_cast<std::int64_t>(figures.failed));
  requests.set("peak_concurrency", static_cast<std::int64_t>(figures.peak_concurrency));
  requests.set("prompt_tokens", figures.prompt_tokens);
  requests.set("output_tokens", figures.output_tokens);
  throughput.set("requests_per_second", figures.requests_per_second);
  throughput.set("output_tokens_per_second", figures.output_tokens_per_second);
  throughput.set("total_tokens_per_second", figures.total_tokens_per_second);
  latency.set("ttft", latency_object(figures.ttft));
  latency.set("tpot", latency_object(figures.tpot));
  latency.set("itl", latency_object(figures.itl));
  latency.set("e2el", latency_object(figures.e2el));
  latency.set("send_delay", latency_object(figures.send_delay));
  for (const auto& [kind, count] : figures.failures) failures.set(kind, static_cast<std::int64_t>(count));
  out.set("duration_seconds", figures.duration);
  out.set("requests", std::move(requests));
  out.set("throughput", std::move(throughput));
  out.set("latency_ms", std::move(latency));
  out.set("failures", std::move(failures));
  if (figures.goodput) {
    value_object goodput, limits;
    if (wanted.ttft) limits.set("ttft", *wanted.ttft);
    if (wanted.tpot) limits.set("tpot", *wanted.tpot);
    if (wanted.e2el) limits.set("e2el", *wanted.e2el);
    goodput.set("requests_per_second", *figures.goodput);
    goodput.set("objectives_ms", std::move(limits));
    out.set("goodput", std::move(goodput));
  }
  return out;
}

std::string trace_csv(const std::vector<request_record>& records) {
  std::string out = "arrival_s,prompt_tokens,output_tokens\n";
  for (const request_record& r : records) {
    if (r.failure.empty())
      out += format("%.6f,%lld,%lld\n", r.sent, static_cast<long long>(r.prompt_tokens), static_cast<long long>(r.output_tokens));
  }
  return out;
}

std::string progress_line(const progress& now, std::size_t wanted, std::size_t width) {
  const auto seconds = static_cast<long>(now.elapsed);
  std::string tail = format(" %zu/%zu", now.finished, wanted);
  if (now.failed > 0) tail += format(", %zu failed", now.failed);
  tail += format(", %zu running, %.0f outputs/s, %ld:%02ld", now.running,
                 now.elapsed > 0 ? static_cast<double>(now.outputs) / now.elapsed : 0.0, seconds / 60, seconds % 60);
  std::string bar;
  if (width > tail.size() + 6) {
    const std::size_t cells = std::min<std::size_t>(40, width - tail.size() - 2);
    const std::size_t filled = wanted == 0 ? cells : std::min(cells, cells * now.finished / wanted);
    bar = '[' + std::string(filled, '#') + std::string(cells - filled, '.') + ']';
  }
  return (bar + tail).substr(0, width);
}

} // namespace troupe::bench
