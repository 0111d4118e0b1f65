// The deadlines of all sequences, in order of time.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "scheduler/sequence_state.hpp"

namespace troupe {

class deadline_list {
 public:
  void add(sequence_state& s);
  // To be called before `s` goes.
  void remove(sequence_state& s);
  // Takes the deadlines up to `now_ns` out; whose they are, each once.
  std::vector<sequence_state*> take_expired(std::uint64_t now_ns);
  std::optional<std::uint64_t> next_ns() const;

 private:
  using entry = std::pair<std::uint64_t, sequence_state*>;
  struct earlier {
    bool operator()(const entry& a, const entry& b) const;
  };
  std::set<entry, earlier> by_time_;
};

} // namespace troupe
