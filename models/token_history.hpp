// The distinct tokens of one sequence and how often each was an output: what penalties need.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/sampling.hpp"

namespace troupe {

class token_history {
 public:
  // `token` must be in 0 .. vocab-1. Memory of one index per id is taken at the first token.
  void add(token_id token, bool is_output, std::int32_t vocab) {
    if (place_.empty()) place_.resize(static_cast<std::size_t>(vocab));
    std::uint32_t& place = place_[static_cast<std::size_t>(token)];
    if (place == 0) {
      seen_.push_back({token, 0});
      place = static_cast<std::uint32_t>(seen_.size());
    }
    if (is_output) ++seen_[place - 1].output_count;
  }

  void clear() {
    for (const seen_token& seen : seen_) place_[static_cast<std::size_t>(seen.token)] = 0;
    seen_.clear();
  }

  std::span<const seen_token> seen() const { return seen_; }

 private:
  std::vector<seen_token> seen_;
  std::vector<std::uint32_t> place_; // index into seen_ plus 1, by id; 0: not seen
};

} // namespace troupe
