#include "telemetry/node_series.hpp"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>

#include <algorithm>
#include <cstddef>

namespace troupe::telemetry {
namespace {

constexpr std::size_t most_machines = 256;

prometheus::Family<prometheus::Gauge>& gauges(prometheus::Registry& registry, const char* name, const char* help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry);
}

} // namespace

node_series::node_series(prometheus::Registry& registry, const label_map& model)
    : model_(model),
      up_(gauges(registry, "troupe_node_up", "1 while the machine belongs to the cluster, else 0.")),
      slots_(gauges(registry, "troupe_node_slots", "Ranks that the machine has room for.")),
      ranks_(gauges(registry, "troupe_node_ranks", "Slots of the machine that a group holds.")),
      leaving_(gauges(registry, "troupe_node_leaving", "1 while the machine waits for its ranks to go elsewhere, else 0.")),
      missing_(gauges(registry, "troupe_node_missing", "1 while the machine is gone without having asked to leave, else 0.")),
      nodes_(add_gauge(registry, "troupe_nodes", "Nodes that belong to the cluster, without the head.", model)),
      joins_(add_counter(registry, "troupe_node_joins_total", "Nodes that joined.", model)),
      drains_(add_counter(registry, "troupe_node_drains_total", "Nodes that asked to leave.", model)),
      losses_(add_counter(registry, "troupe_node_losses_total", "Nodes that ended or were cut off.", model)),
      refusals_(add_counter(registry, "troupe_node_refusals_total", "Connections and nodes that were not let in.", model)) {
  set(std::string(head_machine), {});
}

node_series::one& node_series::find(const std::string& name) {
  const auto found = machines_.find(name);
  if (found != machines_.end()) return found->second;
  if (machines_.size() >= most_machines) forget_one();
  const label_map labels = with_label(model_, "node", name);
  return machines_[name] = {&up_.Add(labels), &slots_.Add(labels), &ranks_.Add(labels), &leaving_.Add(labels), &missing_.Add(labels)};
}

void node_series::forget_one() {
  auto oldest = machines_.end();
  for (auto it = machines_.begin(); it != machines_.end(); ++it) {
    if (it->second.is_up) continue;
    if (oldest == machines_.end() || it->second.last_change < oldest->second.last_change) oldest = it;
  }
  if (oldest == machines_.end()) return; // all are up: then there are as many series as machines
  up_.Remove(oldest->second.up);
  slots_.Remove(oldest->second.slots);
  ranks_.Remove(oldest->second.ranks);
  leaving_.Remove(oldest->second.leaving);
  missing_.Remove(oldest->second.missing);
  machines_.erase(oldest);
}

void node_series::set(const std::string& name, const node_figures& now) {
  const std::lock_guard lock(guard_);
  one& machine = find(name);
  if (machine.is_up != now.up) {
    machine.is_up = now.up;
    machine.last_change = ++changes_;
    if (name != head_machine && now.up) joins_.Increment();
  }
  if (now.leaving && !machine.is_leaving) drains_.Increment();
  machine.is_leaving = now.leaving;
  machine.up->Set(now.up ? 1 : 0);
  machine.slots->Set(now.up ? now.slots : 0);
  machine.ranks->Set(now.up ? now.ranks : 0);
  machine.leaving->Set(now.leaving ? 1 : 0);
  machine.missing->Set(now.missing ? 1 : 0);
  nodes_.Set(static_cast<double>(
      std::count_if(machines_.begin(), machines_.end(), [](const auto& m) { return m.second.is_up && m.first != head_machine; })));
}

void node_series::lost() { losses_.Increment(); }
void node_series::refused() { refusals_.Increment(); }

} // namespace troupe::telemetry
