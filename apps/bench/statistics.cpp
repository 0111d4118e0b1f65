#include "apps/bench/statistics.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <numeric>
#include <system_error>
#include <utility>

namespace troupe::bench {
namespace {

// Most requests under way at one moment. One that ends when another begins does not overlap it.
std::size_t peak_concurrency(const std::vector<request_record>& records) {
  std::vector<std::pair<double, int>> changes;
  for (const auto& record : records) {
    changes.emplace_back(record.sent, 1);
    changes.emplace_back(record.ended, -1);
  }
  std::sort(changes.begin(), changes.end());
  std::int64_t now = 0, peak = 0;
  for (const auto& [time, step] : changes) peak = std::max(peak, now += step);
  return static_cast<std::size_t>(peak);
}

std::vector<std::pair<std::string, std::size_t>> count_failures(const std::vector<request_record>& records) {
  std::map<std::string, std::size_t> kinds;
  for (const auto& record : records) {
    if (!record.failure.empty()) ++kinds[record.failure];
  }
  std::vector<std::pair<std::string, std::size_t>> sorted(kinds.begin(), kinds.end());
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  return sorted;
}

double run_duration(const std::vector<request_record>& records) {
  if (records.empty()) return 0;
  const auto begin = std::min_element(records.begin(), records.end(), [](const auto& a, const auto& b) { return a.sent < b.sent; });
  const auto end = std::max_element(records.begin(), records.end(), [](const auto& a, const auto& b) { return a.ended < b.ended; });
  return std::max(0.0, end->ended - begin->sent);
}

} // namespace

double percentile(const std::vector<double>& sorted, double q) {
  if (sorted.empty()) return 0;
  const double position = std::clamp(q, 0.0, 1.0) * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const auto above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (position - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

summary summarize(std::vector<double> samples) {
  if (samples.empty()) return {};
  std::sort(samples.begin(), samples.end());
  const double sum = std::accumulate(samples.begin(), samples.end(), 0.0);
  return {samples.size(),
          sum / static_cast<double>(samples.size()),
          percentile(samples, 0.5),
          percentile(samples, 0.9),
          percentile(samples, 0.99),
          samples.back()};
}

double midmean(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const double count = static_cast<double>(samples.size()), from = count / 4, to = count - from;
  double sum = 0;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const double left = static_cast<double>(i);
    sum += samples[i] * std::max(0.0, std::min(left + 1, to) - std::max(left, from));
  }
  return samples.empty() ? 0 : sum / (to - from);
}

objectives_or_error parse_objectives(const std::vector<std::string>& words) {
  objectives_or_error out;
  for (const auto& word : words) {
    const auto colon = word.find(':');
    const auto name = word.substr(0, colon);
    double limit = 0;
    const char* from = colon == std::string::npos ? word.data() + word.size() : word.data() + colon + 1;
    const auto [end, failure] = std::from_chars(from, word.data() + word.size(), limit);
    auto* target = name == "ttft" ? &out.value.ttft : name == "tpot" ? &out.value.tpot : name == "e2el" ? &out.value.e2el : nullptr;
    if (!target || failure != std::errc{} || end != word.data() + word.size() || !std::isfinite(limit) || limit <= 0) {
      out.failure = "'" + word + "' is no objective: ttft:MS, tpot:MS or e2el:MS";
      return out;
    }
    *target = limit;
  }
  return out;
}

double time_to_first_token(const request_record& record) { return record.first.value_or(record.ended) - record.sent; }

std::optional<double> time_per_output_token(const request_record& record) {
  if (!record.first || record.output_tokens < 2) return std::nullopt;
  return (record.last - *record.first) / static_cast<double>(record.output_tokens - 1);
}

bool meets(const request_record& record, const objectives& wanted) {
  if (!record.failure.empty()) return false;
  if (wanted.ttft && time_to_first_token(record) * 1e3 > *wanted.ttft) return false;
  if (wanted.e2el && (record.ended - record.sent) * 1e3 > *wanted.e2el) return false;
  return !wanted.tpot || time_per_output_token(record).value_or(0) * 1e3 <= *wanted.tpot;
}

totals total(const std::vector<request_record>& records, const objectives& wanted) {
  totals out;
  std::vector<double> ttft, tpot, itl, e2el, delay;
  std::size_t good = 0;
  for (const auto& record : records) {
    delay.push_back(std::max(0.0, record.sent - record.due));
    if (!record.failure.empty()) {
      ++out.failed;
      continue;
    }
    ++out.completed;
    out.prompt_tokens += record.prompt_tokens;
    out.output_tokens += record.output_tokens;
    ttft.push_back(time_to_first_token(record));
    if (const auto per_token = time_per_output_token(record)) tpot.push_back(*per_token);
    itl.insert(itl.end(), record.gaps.begin(), record.gaps.end());
    e2el.push_back(record.ended - record.sent);
    good += meets(record, wanted) ? 1 : 0;
  }
  out.duration = run_duration(records);
  const auto per_second = [&](double amount) { return out.duration > 0 ? amount / out.duration : 0; };
  out.requests_per_second = per_second(static_cast<double>(out.completed));
  out.output_tokens_per_second = per_second(static_cast<double>(out.output_tokens));
  out.total_tokens_per_second = per_second(static_cast<double>(out.output_tokens + out.prompt_tokens));
  if (wanted.any()) out.goodput = per_second(static_cast<double>(good));
  out.peak_concurrency = peak_concurrency(records);
  out.failures = count_failures(records);
  out.ttft = summarize(std::move(ttft));
  out.tpot = summarize(std::move(tpot));
  out.itl = summarize(std::move(itl));
  out.e2el = summarize(std::move(e2el));
  out.send_delay = summarize(std::move(delay));
  return out;
}

} // namespace troupe::bench
