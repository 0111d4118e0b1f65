#include "scheduler/deadlines.hpp"

#include <algorithm>
#include <tuple>

namespace troupe {

// By id where times are equal, never by address: the order of what expires is the same in every run.
bool deadline_list::earlier::operator()(const entry& a, const entry& b) const {
  return std::tie(a.first, a.second->request.id) < std::tie(b.first, b.second->request.id);
}

void deadline_list::add(sequence_state& s) {
  for (const auto& deadline : {s.request.queue_deadline_ns, s.request.total_deadline_ns}) {
    if (deadline) by_time_.emplace(*deadline, &s);
  }
}

void deadline_list::remove(sequence_state& s) {
  for (const auto& deadline : {s.request.queue_deadline_ns, s.request.total_deadline_ns}) {
    if (deadline) by_time_.erase({*deadline, &s});
  }
}

std::vector<sequence_state*> deadline_list::take_expired(std::uint64_t now_ns) {
  std::vector<sequence_state*> whose;
  while (!by_time_.empty() && by_time_.begin()->first <= now_ns) {
    sequence_state* s = by_time_.begin()->second;
    if (std::find(whose.begin(), whose.end(), s) == whose.end()) whose.push_back(s);
    by_time_.erase(by_time_.begin());
  }
  return whose;
}

std::optional<std::uint64_t> deadline_list::next_ns() const {
  if (by_time_.empty()) return std::nullopt;
  return by_time_.begin()->first;
}

} // namespace troupe
