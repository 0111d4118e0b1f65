// The series of a cluster's machines. Part of metrics' implementation.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "telemetry/metrics.hpp"
#include "telemetry/series.hpp"

namespace prometheus {
template <typename T>
class Family;
} // namespace prometheus

namespace troupe::telemetry {

// The head is there from the start. Of machines that went, the one that is gone longest is forgotten where there would be more than 256:
// names are the operator's, and those of a fleet may never come back.
class node_series {
 public:
  node_series(prometheus::Registry& registry, const label_map& model);

  void set(const std::string& name, const node_figures& now); // thread-safe
  void lost();
  void refused();

 private:
  struct one {
    prometheus::Gauge* up;
    prometheus::Gauge* slots;
    prometheus::Gauge* ranks;
    prometheus::Gauge* leaving;
    prometheus::Gauge* missing;
    std::uint64_t last_change = 0; // of `up`
    bool is_up = false;
    bool is_leaving = false;
  };

  one& find(const std::string& name);
  void forget_one();

  const label_map model_;
  prometheus::Family<prometheus::Gauge>&up_, &slots_, &ranks_, &leaving_, &missing_;
  prometheus::Gauge& nodes_;
  prometheus::Counter &joins_, &drains_, &losses_, &refusals_;
  std::mutex guard_;
  std::map<std::string, one> machines_;
  std::uint64_t changes_ = 0;
};

} // namespace troupe::telemetry
