// Reads the text exposition format, strictly enough to notice a line that a scraper would refuse.
#pragma once

#include <cctype>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::telemetry::testing {

struct family {
  std::string type;
  std::string help;
  std::set<std::string> label_names; // without "le"
  std::set<std::string> bounds;      // values of "le", "+Inf" included
};

struct exposition {
  std::map<std::string, family> families;
  std::map<std::string, double> samples; // key: the series as it is written
  std::vector<std::string> family_order;

  // Throws std::out_of_range when there is no such series.
  double at(const std::string& series) const { return samples.at(series); }
};

// Name of a sample's family: without the suffixes of a histogram.
inline std::string family_name(const exposition& text, std::string_view sample) {
  for (const std::string_view suffix : {"_bucket", "_sum", "_count"}) {
    if (!sample.ends_with(suffix)) continue;
    const std::string base(sample.substr(0, sample.size() - suffix.size()));
    const auto found = text.families.find(base);
    if (found != text.families.end() && found->second.type == "histogram") return base;
  }
  return std::string(sample);
}

inline void read_labels(family& owner, std::string_view labels) {
  while (!labels.empty()) {
    const auto equals = labels.find("=\"");
    if (equals == std::string_view::npos) throw std::runtime_error("label without value");
    const std::string name(labels.substr(0, equals));
    labels.remove_prefix(equals + 2);
    std::string content;
    while (!labels.empty() && labels.front() != '"') {
      if (labels.front() == '\\') labels.remove_prefix(1);
      content += labels.front();
      labels.remove_prefix(1);
    }
    labels.remove_prefix(1);
    if (name == "le") {
      owner.bounds.insert(content);
    } else {
      owner.label_names.insert(name);
    }
    if (!labels.empty() && labels.front() == ',') labels.remove_prefix(1);
  }
}

inline void read_line(exposition& out, std::string_view line) {
  if (line.starts_with("# ")) {
    const auto name_end = line.find(' ', 7);
    const std::string name(line.substr(7, name_end - 7));
    const std::string rest(line.substr(name_end + 1));
    if (line.starts_with("# HELP ")) {
      out.families[name].help = rest;
    } else if (line.starts_with("# TYPE ")) {
      if (!out.families[name].type.empty()) throw std::runtime_error("two TYPE lines for " + name);
      out.families[name].type = rest;
      out.family_order.push_back(name);
    }
    return;
  }
  const auto value_at = line.rfind(' ');
  const std::string series(line.substr(0, value_at));
  const auto brace = series.find('{');
  const auto name = family_name(out, series.substr(0, brace));
  const auto owner = out.families.find(name);
  if (owner == out.families.end()) throw std::runtime_error("sample before its TYPE: " + series);
  if (brace != std::string::npos) {
    read_labels(owner->second, std::string_view(series).substr(brace + 1, series.size() - brace - 2));
  }
  if (!out.samples.emplace(series, std::stod(std::string(line.substr(value_at + 1)))).second) {
    throw std::runtime_error("series twice: " + series);
  }
}

inline exposition read_exposition(std::string_view text) {
  exposition out;
  while (!text.empty()) {
    const auto end = text.find('\n');
    if (end == std::string_view::npos) throw std::runtime_error("last line without newline");
    if (end > 0) read_line(out, text.substr(0, end));
    text.remove_prefix(end + 1);
  }
  return out;
}

} // namespace troupe::telemetry::testing
