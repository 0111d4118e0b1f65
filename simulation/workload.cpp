#include "simulation/workload.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "core/json.hpp"

namespace troupe::simulation {

std::int32_t length_law::draw(random_source& random) const {
  if (sigma == 0) return random.between(low, high);
  const double x = std::round(median * std::exp(sigma * random.normal()));
  return static_cast<std::int32_t>(std::clamp<double>(x, low, high));
}

double length_law::mean() const { return sigma == 0 ? (low + high) / 2.0 : median * std::exp(sigma * sigma / 2); }

std::optional<workload> find_workload(std::string_view name) {
  workload w;
  if (name == "sharegpt") {
    w.prompt = {98, 1.0, 4, 2048};
    w.output = {205, 1.0, 4, 2048};
  } else if (name == "azure-conv") {
    w.prompt = {1020, 0.50, 2, 14000};
    w.output = {129, 0.99, 1, 1500};
  } else if (name == "azure-code") {
    w.prompt = {1500, 0.79, 2, 8000};
    w.output = {13, 1.24, 1, 2000};
  } else {
    return std::nullopt;
  }
  return w;
}

std::optional<length_law> parse_length(std::string_view text) {
  const auto number = [](std::string_view t) -> std::optional<std::int32_t> {
    std::int32_t n = 0;
    const auto [end, failed] = std::from_chars(t.data(), t.data() + t.size(), n);
    return failed == std::errc() && end == t.data() + t.size() && n >= 1 && n <= 10'000'000 ? std::optional(n) : std::nullopt;
  };
  const auto colon = text.find(':');
  const auto low = number(text.substr(0, colon));
  const auto high = colon == std::string_view::npos ? low : number(text.substr(colon + 1));
  if (!low || !high || *low > *high) return std::nullopt;
  return length_law{0, 0, *low, *high};
}

traffic traffic_source::next() {
  now_ns_ += gap_ns_ * random_.gamma(what_.burstiness) / what_.burstiness;
  traffic t;
  t.arrival_ns = now_ns_;
  t.prompt_tokens = what_.prompt.draw(random_);
  t.output_tokens = what_.output.draw(random_);
  if (what_.prefixes > 0) {
    t.prefix = 1 + static_cast<std::uint32_t>(random_.below(what_.prefixes));
    t.prompt_tokens += what_.prefix_tokens;
  }
  return t;
}

// -- traces -----------------------------------------------------------------------------------------------------------------------

namespace {

std::vector<std::string_view> split(std::string_view text, char by) {
  std::vector<std::string_view> parts;
  for (std::size_t from = 0;;) {
    const auto at = text.find(by, from);
    parts.push_back(text.substr(from, at - from));
    if (at == std::string_view::npos) return parts;
    from = at + 1;
  }
}

std::string_view trim(std::string_view t) {
  while (!t.empty() && (t.back() == '\r' || t.back() == ' ')) t.remove_suffix(1);
  while (!t.empty() && t.front() == ' ') t.remove_prefix(1);
  return t;
}

// Seconds, or "YYYY-MM-DD HH:MM:SS[.f]" as seconds of its month: traces of a day need no calendar.
std::optional<double> seconds(std::string_view t) {
  const auto number = [](std::string_view s) -> std::optional<double> {
    double x = 0;
    const auto [end, failed] = std::from_chars(s.data(), s.data() + s.size(), x);
    return failed == std::errc() && end == s.data() + s.size() && std::isfinite(x) && x >= 0 ? std::optional(x) : std::nullopt;
  };
  if (t.size() < 19 || t[4] != '-') return number(t);
  const auto day = number(t.substr(8, 2)), hour = number(t.substr(11, 2)), minute = number(t.substr(14, 2)), second = number(t.substr(17));
  if (!day || !hour || !minute || !second) return std::nullopt;
  return ((*day * 24 + *hour) * 60 + *minute) * 60 + *second;
}

std::optional<std::size_t> column_of(std::string_view name) {
  if (name == "arrival_s" || name == "timestamp" || name == "TIMESTAMP") return 0;
  if (name == "prompt_tokens" || name == "ContextTokens") return 1;
  if (name == "output_tokens" || name == "GeneratedTokens") return 2;
  return std::nullopt;
}

using trace_row = std::vector<std::optional<double>>; // arrival, prompt, output

std::optional<traffic> to_traffic(const trace_row& row) {
  if (!row[0] || !row[1] || !row[2] || *row[1] < 1 || *row[2] < 1 || *row[1] > 1e7 || *row[2] > 1e7) return std::nullopt;
  return traffic{*row[0] * 1e9, static_cast<std::int32_t>(*row[1]), static_cast<std::int32_t>(*row[2]), 0};
}

trace_row json_row(std::string_view line) {
  trace_row row(3);
  const auto parsed = json::parse(line);
  if (!parsed || !parsed->is_object()) return row;
  for (const auto& [name, item] : parsed->as_object().entries()) {
    const auto column = column_of(name);
    if (column && item.is_number()) row[*column] = item.as_double();
    if (column && item.is_string()) row[*column] = seconds(item.as_string());
  }
  return row;
}

} // namespace

result<std::vector<traffic>> parse_trace(std::string_view text, bool json_lines) {
  std::vector<traffic> out;
  std::vector<std::optional<std::size_t>> columns;
  std::size_t number = 0;
  for (std::string_view line : split(text, '\n')) {
    ++number;
    line = trim(line);
    if (line.empty()) continue;
    trace_row row(3);
    if (json_lines) {
      row = json_row(line);
    } else {
      const auto cells = split(line, ',');
      if (columns.empty()) {
        for (const std::string_view cell : cells) columns.push_back(column_of(trim(cell)));
        continue;
      }
      for (std::size_t i = 0; i < std::min(cells.size(), columns.size()); ++i) {
        if (columns[i]) row[*columns[i]] = seconds(trim(cells[i]));
      }
    }
    const auto t = to_traffic(row);
    if (!t) return invalid_request("", "line " + std::to_string(number) + ": arrival_s, prompt_tokens and output_tokens are wanted");
    out.push_back(*t);
  }
  if (out.empty()) return invalid_request("", "no requests");
  std::stable_sort(out.begin(), out.end(), [](const traffic& a, const traffic& b) { return a.arrival_ns < b.arrival_ns; });
  const double first = out.front().arrival_ns;
  for (traffic& t : out) t.arrival_ns -= first;
  return out;
}

} // namespace troupe::simulation
