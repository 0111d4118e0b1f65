// docs/metrics.md says what the program exposes: the same names, types, units, labels and buckets.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "telemetry/metrics.hpp"
#include "tests/telemetry/exposition.hpp"

namespace troupe::telemetry {
namespace {

struct documented {
  std::string type, unit;
  std::set<std::string> labels;
};

std::string trim(const std::string& text) {
  const auto from = text.find_first_not_of(" `");
  return from == std::string::npos ? "" : text.substr(from, text.find_last_not_of(" `") - from + 1);
}

std::string read_docs() {
  std::ifstream file(TROUPE_SOURCE_DIR "/docs/metrics.md");
  return {std::istreambuf_iterator<char>(file), {}};
}

// Rows of the table: | `name` | type | unit | label, label | text |
std::map<std::string, documented> documented_metrics(const std::string& docs) {
  std::map<std::string, documented> out;
  std::istringstream lines(docs);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("| `")) continue;
    std::vector<std::string> cells;
    std::istringstream row(line.substr(1));
    for (std::string cell; std::getline(row, cell, '|');) cells.push_back(trim(cell));
    EXPECT_EQ(cells.size(), 5U) << line;
    if (cells.size() != 5) continue;
    documented item{cells[1], cells[2], {}};
    std::istringstream labels(cells[3]);
    for (std::string label; std::getline(labels, label, ',');) item.labels.insert(trim(label));
    EXPECT_FALSE(cells[4].empty()) << line;
    EXPECT_TRUE(out.emplace(cells[0], item).second) << "twice: " << cells[0];
  }
  return out;
}

// Lines of the block ```buckets: unit: bound bound ..
std::map<std::string, std::set<std::string>> documented_buckets(const std::string& docs) {
  std::map<std::string, std::set<std::string>> out;
  const auto from = docs.find("```buckets\n");
  if (from == std::string::npos) return out;
  std::istringstream lines(docs.substr(from, docs.find("\n```", from) - from));
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line)) {
    const auto colon = line.find(':');
    std::istringstream bounds(line.substr(colon + 1));
    auto& unit = out[line.substr(0, colon)];
    for (std::string bound; bounds >> bound;) unit.insert(bound);
  }
  return out;
}

// The unit that a name's ending promises, or empty.
std::string promised_unit(std::string name) {
  if (name.ends_with("_total")) name.resize(name.size() - 6);
  for (const char* unit : {"seconds", "bytes", "tokens", "ratio", "info"}) {
    if (name.ends_with("_" + std::string(unit))) return unit;
  }
  return "";
}

TEST(MetricsDocs, ListExactlyTheExposedMetricsWithTypesUnitsAndLabels) {
  const auto listed = documented_metrics(read_docs());
  const auto exposed = testing::read_exposition(metrics("tiny", "1").render()).families;
  for (const auto& [name, family] : exposed) {
    const auto found = listed.find(name);
    ASSERT_NE(found, listed.end()) << name << " is not in docs/metrics.md";
    EXPECT_EQ(found->second.type, family.type) << name;
    EXPECT_EQ(found->second.labels, family.label_names) << name;
    EXPECT_FALSE(found->second.unit.empty()) << name;
    if (const auto unit = promised_unit(name); !unit.empty()) {
      EXPECT_EQ(found->second.unit, unit) << name;
    }
    EXPECT_EQ(name.ends_with("_total"), family.type == "counter") << name;
  }
  for (const auto& [name, item] : listed) EXPECT_TRUE(exposed.contains(name)) << name << " is listed but not exposed";
}

TEST(MetricsDocs, ListTheBucketsOfEveryHistogram) {
  const auto docs = read_docs();
  const auto buckets = documented_buckets(docs);
  const auto listed = documented_metrics(docs);
  for (const auto& [name, family] : testing::read_exposition(metrics("tiny", "1").render()).families) {
    if (family.type != "histogram") continue;
    auto bounds = family.bounds;
    EXPECT_EQ(bounds.erase("+Inf"), 1U) << name;
    ASSERT_TRUE(listed.contains(name)) << name;
    const auto unit = listed.at(name).unit;
    ASSERT_TRUE(buckets.contains(unit)) << name << ": no buckets for " << unit;
    EXPECT_EQ(buckets.at(unit), bounds) << name;
  }
}

} // namespace
} // namespace troupe::telemetry
