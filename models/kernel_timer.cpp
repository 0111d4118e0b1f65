#include "models/kernel_timer.hpp"

#include <map>

namespace troupe {

kernel_timer::kernel_timer(std::size_t marks, place where) : place_(where), groups_(marks + 1) {
  for (std::size_t i = 0; i < groups_.size(); ++i) events_.emplace_back(cuda::event::timing::on);
}

void kernel_timer::mark(const cuda::stream& on, kernel_group group) {
  if (used_ == events_.size()) return;
  groups_[used_] = group;
  cuda::event& event = events_[used_++];
  place_ == place::in_graph ? event.record_in_graph(on) : event.record(on);
}

std::vector<group_time> kernel_timer::times() const {
  std::map<kernel_group, double> sums; // milliseconds
  for (std::size_t i = 0; i + 1 < used_; ++i) sums[groups_[i]] += static_cast<double>(cuda::elapsed_ms(events_[i], events_[i + 1]));
  std::vector<group_time> out;
  for (const auto& [group, ms] : sums) out.push_back({group, static_cast<std::uint64_t>(ms * 1e6)});
  return out;
}

} // namespace troupe
